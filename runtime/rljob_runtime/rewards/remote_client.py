"""The coordinator's way to the container `rewards` (`remote_server.py`): the same calls as in its own processes."""

from __future__ import annotations

import asyncio
import base64
import logging
import pickle
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rljob_runtime.rewards.errors import Failure, RewardsNotReady, ScoreFailed
from rljob_runtime.rewards.function_scorer import cannot_confine, longest_seconds
from rljob_runtime.rewards.rules import InvalidReward, Rule
from rljob_runtime.sandbox.framing import MessageTooLong
from rljob_runtime.sandbox.process_pool import Seats
from rljob_runtime.sandbox.program import End, Program, Run, SandboxFailed, SandboxUnavailable
from rljob_runtime.sandbox.sandbox import START_SECONDS, longest_run_seconds
from rljob_runtime.sandbox.streams import receive, send
from rljob_runtime.scheduling.backoff import Backoff

log = logging.getLogger(__name__)

RETRY = Backoff(initial=0.2, maximum=5.0)
"""Between tries to connect while the container is not there."""
PATIENCE_SECONDS = 60.0
"""For a container that is not there, or dies under each try."""
OPEN_SECONDS = 300.0
"""For its answer to what a connection is for: a worker or a supervisor is started."""
SLACK_SECONDS = 60.0
"""On top of what a call may take there."""
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
        line = await self._life_line()
        self.there = True
        try:
            await receive(line.reader)
        finally:
            self.there = False
            await line.kill()
        await asyncio.sleep(LAST_WORDS_SECONDS)
        raise RewardsEnded("the container rewards has ended; what it was scoring is scored again in the next pod")

    async def _life_line(self) -> Connection:
        """Without end: a container that does not come up is the operator's to see, and to replace if it has ended."""
        while True:
            try:
                return await self.connect({"watch": True})
            except RewardsNotReady as error:
                log.warning("waiting for the life line: %s", error)

    async def connect(self, purpose: Json) -> Connection:
        """A connection for one purpose. Its answer, if it is not `ready`, is raised: `InvalidReward`,
        `SandboxUnavailable`, or `RewardsNotReady`, as when there is no answer at all."""
        clock = asyncio.get_running_loop().time
        ends, tries = clock() + PATIENCE_SECONDS, 0
        while (connection := await self._try(purpose)) is None:
            # It may not be there yet. If it is gone for good, the life line ends us.
            tries += 1
            pause = RETRY.delay(tries) or RETRY.maximum
            if clock() + pause > ends:
                raise RewardsNotReady(f"the container rewards is not there ({tries} tries)")
            await asyncio.sleep(pause)
        return connection

    async def _try(self, purpose: Json) -> Connection | None:
        try:
            connection = Connection(*await asyncio.open_unix_connection(self._socket))
        except OSError:
            return None
        try:
            answer = await connection.ask(purpose, OPEN_SECONDS)
        except TimeoutError:
            raise RewardsNotReady(f"the container rewards gave no answer within {OPEN_SECONDS:g} s") from None
        except BaseException:
            await connection.kill()
            raise
        if answer is None or "ready" in answer:
            return None if answer is None else connection
        await connection.kill()
        raise _refusal(answer)


def _refusal(answer: Json) -> Exception:
    match answer:
        case {"invalid": str(why)}:
            return InvalidReward(why)
        case {"unavailable": str(why)}:
            return SandboxUnavailable(why)
        case {"broken": str(why)}:
            return RewardsNotReady(f"the container rewards: {why}")
    return RewardsEnded(f"the container rewards is of another version: {answer}")


class Connection:
    """A seat in the container."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer
        self.alive = True

    async def ask(self, message: Json, seconds: float) -> Json | None:
        """The answer; None when the container died. Raises `TimeoutError`, and `MessageTooLong` for a message that it
        would not take. After a cancelled or late call the connection is of no more use."""
        try:
            async with asyncio.timeout(seconds):
                await send(self._writer, message)
                answer = await receive(self.reader)
        except ConnectionError:
            answer = None
        except TimeoutError:
            await self.kill()
            raise
        if answer is None or "broken" in answer:
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
        self._rules = tuple(rules)
        self._bound = longest_seconds(rules) + SLACK_SECONDS
        self.seats = Seats(workers, lambda: elsewhere.connect(purpose))

    async def __aenter__(self) -> Self:
        """Take the first seat, which shows whether the rules can be loaded. Raises as `FunctionScorer` does."""
        try:
            async with self.seats.taken():
                return self
        except SandboxUnavailable as error:
            raise cannot_confine(self._rules, error) from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave all seats."""
        await self.seats.close()

    async def score(self, prompt: object, response: str) -> float:
        """The weighted sum over the rules. Raises `ScoreFailed`."""
        sample = base64.b64encode(pickle.dumps((prompt, response))).decode()
        try:
            async with self.seats.taken() as seat:
                answer = await seat.ask({"sample": sample}, self._bound)
        except TimeoutError:
            detail = f"the container rewards gave no answer within {self._bound:g} s"
            raise ScoreFailed(Failure.TIMED_OUT, "*", detail) from None
        except (InvalidReward, SandboxUnavailable, RewardsNotReady) as error:  # a later seat, unlike the first one
            raise ScoreFailed(Failure.NOT_STARTED, "*", str(error)) from error
        if answer is None:
            raise ScoreFailed(Failure.CRASHED, "*", "the container rewards ended under the call")
        if "broken" in answer:
            raise ScoreFailed(Failure.CRASHED, "*", f"the container rewards: {answer['broken']}")
        if "failure" in answer:
            raise ScoreFailed(Failure(answer["failure"]), answer["rule"], answer["detail"])
        return float(answer["value"])


class SandboxElsewhere:
    """`Sandbox` in the container."""

    def __init__(self, elsewhere: Elsewhere, seats: int) -> None:
        self.seats = Seats(seats, lambda: elsewhere.connect({"programs": True}))

    async def __aenter__(self) -> Self:
        """Take the first seat, which shows whether there is a sandbox. Raises `SandboxUnavailable` and
        `RewardsNotReady`."""
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
        bound = START_SECONDS + longest_run_seconds(program) + SLACK_SECONDS
        try:
            async with self.seats.taken() as seat:
                answer = await seat.ask(vars(program), bound)
        except TimeoutError:
            raise SandboxFailed(f"the container rewards gave no answer within {bound:g} s") from None
        except (SandboxUnavailable, RewardsNotReady) as error:  # a later seat, though the first one was good
            raise SandboxFailed(str(error)) from error
        except MessageTooLong as error:
            raise SandboxFailed(f"the program and what it reads are too long: {error}") from error
        if answer is None:
            raise SandboxFailed("the container rewards ended under the program")
        if failed := answer.get("failed") or answer.get("broken"):
            raise SandboxFailed(failed)
        return Run(**{**answer, "end": End(answer["end"])})
