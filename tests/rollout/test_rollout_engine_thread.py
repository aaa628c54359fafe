"""The thread that owns an engine: whoever waits for it has an answer, whatever fails."""

from __future__ import annotations

import queue
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

    def on_change(engine: Any, outputs: Any) -> None:
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


def test_a_call_that_fails_tells_its_caller_and_nobody_else() -> None:
    found = thread(lambda engine, outputs: None)
    with pytest.raises(ZeroDivisionError):
        found.call(lambda engine: 1 / 0).result(20)
    assert not found.ended
    assert found.close(20)
