"""An engine refuses a size, or a process dies in a step of a switch, where a file in shared memory asks for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hack.chaos.in_pods import failing_engines
from hack.chaos.in_pods.failing_engines import ASLEEP, DIES, REFUSED, STOPPING, refuse, stop
from rljob_runtime.rollout.engine_cache import EngineCache
from rljob_runtime.rollout.replica import RolloutReplica


class Killed(BaseException):
    """The process would have ended here."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files, and processes that are not killed."""

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (os.getpid(), signal.SIGKILL)
        raise Killed

    monkeypatch.setattr(failing_engines, "FOLDER", tmp_path)
    monkeypatch.setattr(os, "kill", kill)
    return tmp_path


class Engine:
    """An engine that notes whether it sleeps."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sleeps = False

    def sleep(self) -> None:
        self.sleeps = True

    def wake(self) -> None:
        self.sleeps = False


@pytest.fixture
def cache() -> Any:
    """An engine cache whose class is changed as in a pod. It has engines of both sizes, and uses that of size 1."""
    module = SimpleNamespace(EngineCache=type("EngineCache", (EngineCache,), {}))
    refuse(module)
    made = module.EngineCache(Engine)
    made.switch(2)
    made.switch(1)
    return made


def test_an_engine_of_a_refused_size_neither_wakes_nor_is_built(asked: Path, cache: Any) -> None:
    (asked / REFUSED).write_text("2")
    with pytest.raises(RuntimeError, match="no engine of this size starts"):
        cache.switch(2)
    assert cache.tensor_parallel is None
    cache.switch(1)
    assert (cache.tensor_parallel, cache.kv_engine().sleeps) == (1, False)
    (asked / REFUSED).unlink()
    cache.switch(2)
    assert cache.tensor_parallel == 2


@pytest.mark.parametrize("step", [None, STOPPING])
def test_no_process_dies_asleep_unless_that_is_asked_for(asked: Path, cache: Any, step: str | None) -> None:
    if step is not None:
        (asked / DIES).write_text(step)
    cache.sleep()
    assert cache.tensor_parallel is None


def test_the_first_process_whose_engine_sleeps_dies(asked: Path, cache: Any) -> None:
    engine = cache.kv_engine()
    (asked / DIES).write_text(ASLEEP)
    with pytest.raises(Killed):
        cache.sleep()
    assert (engine.sleeps, (asked / DIES).exists()) == (True, False)
    cache.sleep()
    cache.switch(2)
    (asked / DIES).write_text(STOPPING)
    cache.sleep()


class Attempts(dict[str, int]):
    """The attempts of a replica."""

    def active(self, attempts: dict[str, int]) -> dict[str, int]:
        return {key: attempt for key, attempt in attempts.items() if key in self}


class Replica:
    """A replica that notes what it stops."""

    def __init__(self, *keys: str) -> None:
        self._attempts = Attempts(dict.fromkeys(keys, 1))
        self.stopped: list[str] = []

    async def abort(self, term: int, attempts: dict[str, int]) -> None:
        self.stopped += attempts


@pytest.mark.parametrize(
    ("active", "told", "dies"),
    [("ab", "ab", True), ("ab", "abc", True), ("ab", "a", False), ("a", "a", False), ("", "a", False)],
    ids=["all", "all and one that ended", "some", "a single one", "none"],
)
async def test_a_replica_dies_as_it_stops_all_its_responses(asked: Path, active: str, told: str, dies: bool) -> None:
    module = SimpleNamespace(RolloutReplica=type("RolloutReplica", (Replica,), {}))
    stop(module)
    replica = module.RolloutReplica(*active)
    (asked / DIES).write_text(STOPPING)
    attempts = dict.fromkeys(told, 1)
    if dies:
        with pytest.raises(Killed):
            await replica.abort(1, attempts)
        assert replica.stopped == []
    await replica.abort(1, attempts)
    assert replica.stopped == list(told), "no other process dies"


def test_what_is_replaced_in_a_pod_is_there() -> None:
    assert callable(RolloutReplica.abort)
    assert all(callable(getattr(EngineCache, name)) for name in ("_woken", "_build", "sleep"))
    assert set(failing_engines.PATCHES) == {EngineCache.__module__, RolloutReplica.__module__}
