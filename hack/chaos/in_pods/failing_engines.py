"""Failing engines: lets engines of a chaos job refuse a tensor parallel size, or die in a step of a switch, when asked.

A switch takes less time than a command from outside needs to arrive, and two of its steps leave no trace in a file. So
`patching` puts these faults into the replicas' processes. A file in the machine's shared memory asks for each. The
injector writes it, in which words are separated by spaces, and waits until a process has removed it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path("/dev/shm")
REFUSED = "chaos-refused"
"""File of the sizes whose engines do not start while it is there."""
DIES = "chaos-dies"
"""File of the step in which the first process that gets there dies: one of these two."""
STOPPING, ASLEEP = "stopping", "asleep"
"""A replica is told to stop all that it generates, without its KV. Its engine has just begun to sleep."""
MANY = 2
"""Responses that a replica must have for its stop to be one of a switch. Others of a group are stopped one by one."""


def refuse(module: Any) -> None:
    """Let the engine caches in `module` neither wake nor build engines of the refused sizes."""
    cache = module.EngineCache
    wake, build, sleep = cache._woken, cache._build, cache.sleep

    def woken(self: Any, size: int) -> Any:
        return None if is_refused(size) else wake(self, size)

    def built(self: Any, size: int) -> Any:
        if is_refused(size):
            raise RuntimeError(f"{FOLDER / REFUSED} says that no engine of this size starts")
        return build(self, size)

    def slept(self: Any) -> None:
        rested = self.tensor_parallel is not None
        sleep(self)
        if rested:
            die(ASLEEP)

    cache._woken, cache._build, cache.sleep = woken, built, slept


def stop(module: Any) -> None:
    """Let the replicas in `module` die as they stop, when that is asked for."""
    abort = module.RolloutReplica.abort

    async def aborted(self: Any, term: int, attempts: Mapping[Any, int]) -> None:
        active = len(self._attempts)
        if active >= MANY and len(self._attempts.active(attempts)) == active:
            die(STOPPING)
        await abort(self, term, attempts)

    module.RolloutReplica.abort = aborted


def is_refused(size: int) -> bool:
    """Return whether engines of this size do not start now."""
    return str(size) in words(FOLDER / REFUSED)


def die(step: str) -> None:
    """Kill this process if one shall die in this step. Of two that get there, one removes the file and dies."""
    asked = FOLDER / DIES
    if words(asked) != [step]:
        return
    try:
        asked.unlink()
    except FileNotFoundError:  # another process was first
        return
    os.kill(os.getpid(), signal.SIGKILL)


def words(file: Path) -> list[str]:
    """Return the words in a file; none if it is not there."""
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


PATCHES = {"rljob_runtime.rollout.engine_cache": refuse, "rljob_runtime.rollout.replica": stop}
"""Of each module what is done after its import."""
