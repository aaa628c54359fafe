"""A coroutine is run to its end with and without an event loop in the caller's thread."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from rljob_runtime.local.blocking import Interrupt, run_blocking


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


def test_an_interrupt_before_the_work_began_stops_it_at_once():
    interrupt = Interrupt()
    interrupt.interrupt()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, until_stopped(interrupt, threading.Event())).result(10) == "stopped"
