"""The thread that owns an engine: each caller gets an answer, whatever fails."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from rljob_runtime.rollout.engine_thread import EngineDied, EngineThread


class Idle:
    """An engine with nothing to do."""

    busy = False

    def close(self) -> None:
        return


def thread(on_change: Any) -> EngineThread:
    engine: Any = Idle()
    return EngineThread("test", lambda: engine, on_change, lambda: None)


def test_a_call_has_an_answer_though_telling_of_it_fails() -> None:
    failures: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def on_change(engine: Any, outputs: Any, seconds: float | None) -> None:
        if not failures.empty():
            raise failures.get()

    found = thread(on_change)
    assert found.call(lambda engine: 1).result(20) == 1
    failures.put(ZeroDivisionError("why"))
    with pytest.raises(ZeroDivisionError, match="why"):
        found.call(lambda engine: 2).result(20)
    assert found.call(lambda engine: 3).result(20) == 3, "and the engine lives on"
    assert found.close(20)
    with pytest.raises(EngineDied):
        found.call(lambda engine: 4).result(20)


def test_a_failed_call_raises_for_its_caller_alone() -> None:
    found = thread(lambda *_: None)
    with pytest.raises(ZeroDivisionError):
        found.call(lambda engine: 1 / 0).result(20)
    assert not found.ended
    assert found.close(20)


class Failing:
    """An engine in the middle of a step, which raises once it may."""

    busy = True

    def __init__(self) -> None:
        self.stepping, self.may_fail, self.closed = threading.Event(), threading.Event(), threading.Event()

    def step(self) -> None:
        self.stepping.set()
        assert self.may_fail.wait(20)
        raise ZeroDivisionError("why")

    def close(self) -> None:
        self.closed.set()


def test_every_caller_receives_the_failure_of_an_engine_step() -> None:
    """Who waits, who comes later, and who looks after it."""
    engine, ended = Failing(), threading.Event()
    made: Any = engine
    found = EngineThread("test", lambda: made, lambda *_: None, ended.set)
    assert engine.stepping.wait(20)
    waiting = found.call(lambda engine: 1)
    engine.may_fail.set()
    with pytest.raises(EngineDied, match=r"the engine failed: ZeroDivisionError\('why'\)") as caught:
        waiting.result(20)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(EngineDied):
        found.call(lambda engine: 2).result(20)
    assert ended.wait(20)
    assert found.ended
    assert engine.closed.is_set(), "what it held is given back"


def test_an_engine_that_cannot_be_made_is_told() -> None:
    def make() -> Any:
        raise MemoryError("no room")

    ended = threading.Event()
    found = EngineThread("test", make, lambda *_: None, ended.set)
    with pytest.raises(EngineDied, match="no room"):
        found.call(lambda engine: 1).result(20)
    assert ended.wait(20)


class Stepping:
    """An engine that makes three steps of 2 s after a call of 50 s."""

    def __init__(self) -> None:
        self.now, self.steps = 100.0, 0

    @property
    def busy(self) -> bool:
        return self.steps > 0

    def work(self) -> None:
        self.now, self.steps = self.now + 50.0, 3

    def step(self) -> list[Any]:
        self.now, self.steps = self.now + 2.0, self.steps - 1
        return []

    def close(self) -> None:
        return


def test_a_step_begins_with_the_end_of_what_came_before_it() -> None:
    """Neither idle time nor the seconds of a call are in it, but the seconds in which its output is handed on."""
    engine, told = Stepping(), queue.SimpleQueue[float | None]()
    made: Any = engine

    def on_change(_: Any, outputs: Any, seconds: float | None) -> None:
        engine.now += 0.5
        told.put(seconds)

    found = EngineThread("test", lambda: made, on_change, lambda: None, lambda: engine.now)
    for _ in range(2):
        found.call(lambda engine: made.work()).result(20)
        assert [told.get(timeout=20) for _ in range(4)] == [None, 2.0, 2.5, 2.5]
        engine.now += 1000.0
    assert found.close(20)
