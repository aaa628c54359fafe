"""A coroutine is run to its end with and without an event loop in the caller's thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rljob_runtime.local.blocking import EndedEarly, Interrupt, run_blocking


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_without_an_event_loop_the_work_runs_in_this_thread():
    assert run_blocking(name_of_thread(), Interrupt()) == threading.current_thread().name


async def test_with_an_event_loop_as_in_a_notebook_it_runs_in_another():
    assert run_blocking(name_of_thread(), Interrupt()).startswith("rljob")


async def until_stopped(interrupt: Interrupt, running: threading.Event) -> str:
    stopped = asyncio.Event()
    interrupt.calls(stopped.set)
    running.set()
    async with asyncio.timeout(10):
        await stopped.wait()
    return "stopped"


def test_an_interrupt_from_another_thread_stops_the_work():
    interrupt, running = Interrupt(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, until_stopped(interrupt, running))
        assert running.wait(10)
        interrupt.interrupt()
        assert future.result(10) == "stopped"


def test_an_interrupt_before_the_work_began_stops_it_immediately():
    interrupt = Interrupt()
    interrupt.interrupt()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, until_stopped(interrupt, threading.Event())).result(10) == "stopped"


async def stopping_slowly(interrupt: Interrupt, stops: list[str]) -> None:
    """Interrupt this process, as Ctrl-C does; then once more while the first one still stops the work."""

    def stop() -> None:
        stops.append("stopping")
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)

    interrupt.calls(stop)
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(10)
    finally:
        stops.append("cleaned up")


def test_a_second_interrupt_ends_work_that_is_stopping():
    stops: list[str] = []
    interrupt = Interrupt()
    with pytest.raises(EndedEarly):
        run_blocking(stopping_slowly(interrupt, stops), interrupt)
    assert stops == ["stopping", "cleaned up"]


async def not_ending(interrupt: Interrupt, running: threading.Event) -> None:
    interrupt.calls(lambda: None)
    running.set()
    loop = asyncio.get_running_loop()
    last = loop.time() + 10
    while loop.time() < last:
        try:
            await asyncio.sleep(last - loop.time())
        except asyncio.CancelledError:
            # The second one is of the event loop, which ends.
            if asyncio.current_task().cancelling() > 1:
                raise


def test_work_that_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr("rljob_runtime.local.blocking.GIVE_UP_SECONDS", 0.05)
    interrupt, running = Interrupt(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, interrupt.watch(not_ending(interrupt, running)))
        assert running.wait(10)
        interrupt.interrupt()
        interrupt.interrupt()
        with pytest.raises(EndedEarly):
            future.result(10)


def test_work_that_stops_after_one_interrupt_returns_its_result():
    interrupt, running = Interrupt(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, interrupt.watch(until_stopped(interrupt, running)))
        assert running.wait(10)
        interrupt.interrupt()
        assert future.result(10) == "stopped"


def test_a_program_that_is_told_to_exit_stops_the_work_first():
    interrupt, running = Interrupt(), threading.Event()

    def exits(number: int, frame: object) -> None:
        raise SystemExit(number)

    async def caller() -> None:
        threading.Thread(target=lambda: running.wait(10) and os.kill(os.getpid(), signal.SIGTERM)).start()
        run_blocking(until_stopped(interrupt, running), interrupt)

    before = signal.signal(signal.SIGTERM, exits)
    try:
        with pytest.raises(SystemExit):
            asyncio.run(caller())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_stops_the_work_inside_a_running_event_loop():
    interrupt, running = Interrupt(), threading.Event()

    async def caller() -> str:
        before = signal.getsignal(signal.SIGINT)
        threading.Thread(target=lambda: running.wait(10) and os.kill(os.getpid(), signal.SIGINT)).start()
        result = run_blocking(until_stopped(interrupt, running), interrupt)
        assert signal.getsignal(signal.SIGINT) == before
        return result

    assert asyncio.run(caller()) == "stopped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_while_the_work_begins_stops_it(monkeypatch, number):
    """The thread has begun, and its caller does not wait for it yet."""
    interrupt, begin, running = Interrupt(), ThreadPoolExecutor.submit, threading.Event()
    ends: list[str] = []

    def exits(number: int, frame: object) -> None:
        raise SystemExit(number)

    def submit(pool: ThreadPoolExecutor, *work: Any) -> Any:
        future = begin(pool, *work)
        assert running.wait(10)
        os.kill(os.getpid(), number)
        # Another thread may receive it, and this one notices then.
        time.sleep(0.05)
        return future

    async def work() -> None:
        ends.append(await until_stopped(interrupt, running))

    async def caller() -> None:
        run_blocking(work(), interrupt)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    before = signal.signal(signal.SIGTERM, exits)
    try:
        if number == signal.SIGTERM:
            with pytest.raises(SystemExit):
                asyncio.run(caller())
        else:
            asyncio.run(caller())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ends == ["stopped"]


@pytest.mark.parametrize(("interrupted", "raised"), [(True, EndedEarly), (False, KeyboardInterrupt)])
def test_only_a_second_interrupt_ends_a_run_early_while_ray_stops(interrupted, raised):
    interrupt = Interrupt()
    if interrupted:
        interrupt.interrupt()
    with pytest.raises((EndedEarly, KeyboardInterrupt)) as found, interrupt.twice_is_early():
        raise KeyboardInterrupt
    assert found.type is raised
