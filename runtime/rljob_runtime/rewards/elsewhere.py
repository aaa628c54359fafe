"""The coordinator's way to the container `rewards` (`host.py`): the same calls as in its own processes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import pickle
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rljob_runtime.rewards.failure import Failure, ScoreFailed
from rljob_runtime.rewards.rules import InvalidReward, Rule
from rljob_runtime.sandbox.program import End, Program, Run, SandboxFailed, SandboxUnavailable
from rljob_runtime.sandbox.seats import Seats
from rljob_runtime.sandbox.streams import receive, send

RETRY_SECONDS = 0.2
"""Between tries to connect while the container is not there."""
LAST_WORDS_SECONDS = 2.0
"""After the container's end, for the samples that it took along to be noted as aborted."""

Json = dict[str, Any]


class RewardsEnded(Exception):
    """The container has ended. In a pod it does not come back: the coordinator ends too, and both are replaced."""


class Elsewhere:
    """The container behind `socket`. A call waits until the container is there; one that it dies under is our
    failure."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self.there = False
        """Whether the life line holds."""

    async def watch(self) -> None:
        """Hold the life line. Ends with `RewardsEnded`."""
        line = await self.connect({"watch": True})
        self.there = True
        try:
            await receive(line.reader)
        finally:
            self.there = False
            await line.kill()
        await asyncio.sleep(LAST_WORDS_SECONDS)
        raise RewardsEnded("the container rewards has ended; what it was scoring is scored again in the next pod")

    async def connect(self, purpose: Json) -> Connection:
        """A connection for one purpose. Its answer, if it is not `ready`, is raised."""
        while True:
            # It may not be there yet. If it is gone for good, the life line ends us.
            with contextlib.suppress(OSError):
                connection = Connection(*await asyncio.open_unix_connection(self._socket))
                try:
                    answer = await connection.ask(purpose)
                except BaseException:
                    await connection.kill()
                    raise
                if answer is not None and "ready" in answer:
                    return connection
                await connection.kill()
                if answer is not None:
                    raise _refusal(answer)
            await asyncio.sleep(RETRY_SECONDS)


def _refusal(answer: Json) -> Exception:
    match answer:
        case {"invalid": str(why)}:
            return InvalidReward(why)
        case {"unavailable": str(why)}:
            return SandboxUnavailable(why)
    return RewardsEnded(f"the container rewards is of another version: {answer}")


class Connection:
    """A seat in the container."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer
        self.alive = True

    async def ask(self, message: Json) -> Json | None:
        """The answer; None when the container died. After a cancelled call the connection is of no more use."""
        try:
            await send(self._writer, message)
            answer = await receive(self.reader)
        except ConnectionError:
            answer = None
        if answer is None:
            await self.kill()
        return answer

    async def kill(self) -> None:
        """Close it, which ends what runs on the seat."""
        self.alive = False
        self._writer.close()


class FunctionsElsewhere:
    """`FunctionScorer` in the container."""

    def __init__(self, elsewhere: Elsewhere, rules: Sequence[Rule], *, workers: int) -> None:
        purpose = {"functions": [asdict(rule) for rule in rules]}
        self.seats = Seats(workers, lambda: elsewhere.connect(purpose))

    async def __aenter__(self) -> Self:
        """Take the first seat, which shows whether the rules can be loaded. Raises `InvalidReward`."""
        async with self.seats.taken():
            return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave all seats."""
        await self.seats.close()

    async def score(self, prompt: object, response: str) -> float:
        """The weighted sum over the rules. Raises `ScoreFailed`."""
        sample = base64.b64encode(pickle.dumps((prompt, response))).decode()
        async with self.seats.taken() as seat:
            answer = await seat.ask({"sample": sample})
        if answer is None:
            raise ScoreFailed(Failure.CRASHED, "*", "the container rewards ended under the call")
        if "failure" in answer:
            raise ScoreFailed(Failure(answer["failure"]), answer["rule"], answer["detail"])
        return float(answer["value"])


class SandboxElsewhere:
    """`Sandbox` in the container."""

    def __init__(self, elsewhere: Elsewhere, seats: int) -> None:
        self.seats = Seats(seats, lambda: elsewhere.connect({"programs": True}))

    async def __aenter__(self) -> Self:
        """Take the first seat, which shows whether there is a sandbox. Raises `SandboxUnavailable`."""
        async with self.seats.taken():
            return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave all seats."""
        await self.seats.close()

    @property
    def processes_started(self) -> int:
        """Seats taken so far, each with a supervisor."""
        return self.seats.started

    async def run(self, program: Program) -> Run:
        """The program's end. Raises `SandboxFailed`."""
        try:
            async with self.seats.taken() as seat:
                answer = await seat.ask(vars(program))
        except SandboxUnavailable as error:  # a later seat, though the first one was good
            raise SandboxFailed(str(error)) from error
        if answer is None:
            raise SandboxFailed("the container rewards ended under the program")
        if "failed" in answer:
            raise SandboxFailed(answer["failed"])
        return Run(**{**answer, "end": End(answer["end"])})
