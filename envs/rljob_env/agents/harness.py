"""Agent harness: any program that asks OPENAI_BASE_URL, in a session of its own.

With `reset: GitRestore` each program begins in a working copy of a checkout that is its own.

The program finds the task in the file that RLJOB_TASK names. It may write its reward and its answer into the file that
RLJOB_RESULT names. Its exit code does not fail the attempt. Three cases are failures of ours: the program cannot begin,
its result says that it failed, or it ends without a result while the gateway is away (`runner`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rljob_env.agents.checkout import WorkingCopies, open_checkout
from rljob_env.config import GIT_RESTORE, EnvironmentConfig
from rljob_env.conversation import conversation_to_score
from rljob_env.episode import Assignment, Limit, Report
from rljob_env.failures import Failed, Part
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.output import Output, piped
from rljob_env.foreign_code.processes import bare_environment, process_group, python_path
from rljob_env.results import reward_and_metrics
from rljob_env.scoring import Place, Scorer

MOST_RESULT_BYTES = 1 << 16
CHECKOUT = "checkout"
"""The folder of a program's working copy, in its HOME."""


@dataclass
class AgentStats:
    """Totals of a harness."""

    ended: int = 0
    """Programs that ended by themselves."""
    killed: int = 0
    """Programs that ran until their deadline."""


class AgentHarness:
    """Runs a command, or a Python function in a process of its own, for each episode.

    Making it raises `BadConfig` if its checkout is none.
    """

    def __init__(self, gateway: httpx.AsyncClient, config: EnvironmentConfig, root: Path, guard: Guard) -> None:
        self.stats = AgentStats()
        self._gateway_http = gateway
        self._config = config
        self._root = root
        self._guard = guard
        self.scorer = Scorer(config, root, guard)
        self._copies: WorkingCopies | None = None
        if config.reset == GIT_RESTORE:
            self._copies = WorkingCopies(open_checkout(root / config.checkout), guard)
        self._command = config.command
        if config.function is not None:
            # -P: what lies in the folder where it begins, as a checkout, must not hide Python's modules.
            self._command = (sys.executable, "-P", "-m", "rljob_env.agents.main", str(root), config.function)

    async def run(self, assignment: Assignment) -> Report:
        """Run an episode."""
        async with _scratch_folder() as scratch:
            task, result, output = scratch / "task.json", scratch / "result.json", Output()
            task.write_text(json.dumps(_task(assignment)), encoding="utf-8")
            variables = {
                "OPENAI_BASE_URL": assignment.base_url,
                "OPENAI_API_KEY": assignment.api_key,
                "OPENAI_MODEL": assignment.model,
                "RLJOB_TASK": str(task),
                "RLJOB_RESULT": str(result),
                "RLJOB_CODE": str(self._root),
            }
            if assignment.traceparent is not None:
                variables["TRACEPARENT"] = assignment.traceparent
            place = Place(await self._folder(assignment, scratch), scratch)
            began = time.monotonic()
            code = await self._ended(assignment, place, variables, output)
            metrics = {"agent_seconds": time.monotonic() - began}
            ended = await asyncio.to_thread(_result_of, code, result, output.text())
            reward, more = ended.reward, dict[str, float]()
            if reward is None and self.scorer.has_function:
                # The folder is there until it is scored: what the program wrote may be what counts.
                reward, more = await self._scored(assignment, ended.answer, place)
        gave_up = ended.reward is None and ended.answer is None and code != 0
        limit = Limit.SECONDS if code is None else None
        return Report(reward, metrics | ended.metrics | more, None, ended.detail, gave_up, limit, ended.answer)

    async def close(self) -> None:
        """End the processes of rewards."""
        await self.scorer.close()

    async def _folder(self, assignment: Assignment, scratch: Path) -> Path:
        """Return the folder in which the program begins."""
        if self._copies is None:
            return self._root
        return await self._copies.make(scratch / CHECKOUT, scratch, assignment.seconds_left())

    async def _scored(
        self, assignment: Assignment, answer: str | None, place: Place
    ) -> tuple[float | None, dict[str, float]]:
        """Call the reward's function with the conversation. `answer`: the program's; None: the model's last one."""
        messages, answer = await conversation_to_score(self._gateway_http, assignment, answer)
        await asyncio.to_thread(make_enterable, place)
        return await self.scorer.score(assignment, messages, answer, place)

    async def _ended(
        self, assignment: Assignment, place: Place, variables: Mapping[str, str], output: Output
    ) -> int | None:
        """Run the program until it ends; return its exit code, or None if the deadline ended it.

        When this returns, no process of its session lives. Raises `Failed` if the program cannot be started.
        """
        environment = bare_environment(place.home, self._own_variables() | dict(variables))
        try:
            async with piped(output) as log:
                pipes: dict[str, Any] = {"stdin": asyncio.subprocess.DEVNULL, "stdout": log, "stderr": log}
                async with process_group(self._command, environment, place.folder, self._guard, **pipes) as process:
                    async with asyncio.timeout(assignment.seconds_left()):
                        code = await process.wait()
        except TimeoutError:
            self.stats.killed += 1
            return None
        except OSError as error:
            raise Failed(Part.ENVIRONMENT, f"{self._command[0]!r} cannot be started: {error}") from error
        self.stats.ended += 1
        return code

    def _own_variables(self) -> dict[str, str]:
        path = python_path() if self._config.function is not None else {}
        return path | dict(self._config.variables)


@contextlib.asynccontextmanager
async def _scratch_folder() -> AsyncIterator[Path]:
    """Make a folder for one program. A thread deletes it: the program may have filled it."""
    folder = tempfile.TemporaryDirectory(prefix="rljob-env-", ignore_cleanup_errors=True)
    try:
        yield Path(folder.name)
    finally:
        await asyncio.shield(asyncio.to_thread(folder.cleanup))


def make_enterable(place: Place) -> None:
    """Make sure that a program's own folders can be entered: what it did to them must not be a failure of ours."""
    own = [place.home]
    if place.folder.is_relative_to(place.home):
        own += [place.home / one for one in reversed(place.folder.relative_to(place.home).parents)][1:]
        own += [place.folder]
    for folder in own:
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink(missing_ok=True)
            folder.mkdir()
        folder.chmod(0o700)


def _task(assignment: Assignment) -> dict[str, Any]:
    return {
        **assignment.attempt.as_json(),
        "record": dict(assignment.record),
        "messages": [dict(message) for message in assignment.messages],
        "model": assignment.model,
    }


@dataclass(frozen=True)
class _Ended:
    """What a program's end means. `answer`: what it says that the episode's answer is."""

    reward: float | None
    metrics: dict[str, float]
    answer: str | None
    detail: str


def _result_of(code: int | None, result: Path, output: str) -> _Ended:
    """Return what a program wrote. A reward counts however it ended. Raises `Failed`."""
    detail = "the deadline ended the agent" if code is None else f"the agent ended with {code}"
    detail = f"{detail}: {output}" if code != 0 and output else detail
    try:
        # A program may leave a pipe or a link there: opening a pipe would wait for a writer.
        with open(os.open(result, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Failed(Part.ENVIRONMENT, "RLJOB_RESULT is no regular file")
            text = file.read(MOST_RESULT_BYTES + 1)
    except FileNotFoundError:
        return _Ended(None, {}, None, detail)
    except OSError as error:
        raise Failed(Part.ENVIRONMENT, f"RLJOB_RESULT cannot be read: {error}") from error
    try:
        return _parsed(text, detail)
    except (ValueError, RecursionError) as error:
        if code is None:  # It was ended while it wrote.
            return _Ended(None, {}, None, detail)
        raise Failed(Part.ENVIRONMENT, f"RLJOB_RESULT: {error}") from error


def _parsed(text: bytes, detail: str) -> _Ended:
    if len(text) > MOST_RESULT_BYTES:
        raise ValueError(f"longer than {MOST_RESULT_BYTES} bytes")
    found = json.loads(text)
    answer = None
    if isinstance(found, dict):
        if found.get("failed") is not None:
            if found["failed"] not in (Part.ENVIRONMENT, Part.TOOL_SERVER):
                right = f"{str(Part.ENVIRONMENT)!r} or {str(Part.TOOL_SERVER)!r} would be right"
                raise ValueError(f"failed is {found['failed']!r:.100}; {right}")
            raise Failed(Part(found["failed"]), str(found.get("detail") or "the agent says that it failed"))
        answer = found.pop("answer", None)
        if answer is not None and not isinstance(answer, str):
            raise ValueError(f"answer is {answer!r:.100}; a text would be right")
        # A program may state half a character, which no request can have.
        answer = answer and answer.encode(errors="replace").decode()
    reward, metrics = reward_and_metrics(found)
    return _Ended(reward, metrics, answer, detail)
