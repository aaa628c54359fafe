"""Reward server client: the coordinator's side of the `rewards` container (`remote_server.py`).

It has the same interface as the scorers in child processes.
"""

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

from rljob_runtime.protocols.rewards import Reward
from rljob_runtime.rewards.errors import Failure, RewardsNotReady, ScoreFailed
from rljob_runtime.rewards.function_scorer import cannot_confine, longest_seconds
from rljob_runtime.rewards.rules import InvalidReward, Rule, scores
from rljob_runtime.sandbox.framing import MessageTooLong, receive, send
from rljob_runtime.sandbox.process_pool import ProcessPool
from rljob_runtime.sandbox.program import End, Program, Run, SandboxFailed, SandboxUnavailable
from rljob_runtime.sandbox.sandbox import START_SECONDS, longest_run_seconds
from rljob_runtime.scheduling.backoff import Backoff

log = logging.getLogger(__name__)

RETRY = Backoff(initial=0.2, maximum=5.0)
"""Back-off between connection attempts while the container is absent."""
CONNECT_SECONDS = 60.0
"""Longest time to connect to a container that is absent or dies under each attempt."""
OPEN_SECONDS = 300.0
"""Longest time for the first answer on a connection: the container starts a worker or a supervisor."""
SLACK_SECONDS = 60.0
"""Time that a remote call may take beyond the bound of the call itself."""
ABORT_SECONDS = 2.0
"""Time after the container's end in which the coordinator records its samples as aborted."""

Json = dict[str, Any]


class RewardsEnded(Exception):
    """The container has ended.

    In a pod it is not restarted: the coordinator ends too, and both are replaced.
    """


class RewardServerClient:
    """Client of the reward server behind `socket`.

    A call waits until the container is present. A call during which the container dies is a failure of the system.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self.connected = False
        """Whether the liveness connection is open."""

    async def watch(self) -> None:
        """Hold the liveness connection.

        Ends with `RewardsEnded`.
        """
        line = await self._open_liveness_connection()
        self.connected = True
        try:
            await receive(line.reader)
        finally:
            self.connected = False
            await line.kill()
        await asyncio.sleep(ABORT_SECONDS)
        raise RewardsEnded("the rewards container has ended. The next pod scores its open samples again")

    async def _open_liveness_connection(self) -> Connection:
        """Connect without a time limit.

        The operator sees a container that does not start, and replaces one that has ended.
        """
        while True:
            try:
                return await self.connect({"watch": True})
            except RewardsNotReady as error:
                log.warning("waiting for the life line: %s", error)

    async def connect(self, purpose: Json) -> Connection:
        """Open a connection for one purpose.

        An answer other than `ready` is raised as `InvalidReward`, `SandboxUnavailable` or `RewardsNotReady`. No answer
        also raises `RewardsNotReady`.
        """
        clock = asyncio.get_running_loop().time
        ends, tries = clock() + CONNECT_SECONDS, 0
        while (connection := await self._try(purpose)) is None:
            # The container may not be present yet. If it never returns, the liveness connection ends the coordinator.
            tries += 1
            pause = RETRY.delay(tries) or RETRY.maximum
            if clock() + pause > ends:
                raise RewardsNotReady(f"the rewards container is absent ({tries} tries)")
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
            raise RewardsNotReady(f"the rewards container gave no answer within {OPEN_SECONDS:g} s") from None
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
            return RewardsNotReady(f"the rewards container: {why}")
    return RewardsEnded(f"the rewards container is of another version: {answer}")


class Connection:
    """A connection to the reward server, which runs one call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer
        self.alive = True

    async def ask(self, message: Json, seconds: float) -> Json | None:
        """Send a message and return the answer, or None when the container died.

        Raises `TimeoutError`, and `MessageTooLong` for a message that the server refuses. A cancelled or late call
        makes the connection unusable.
        """
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
        """Close the connection, which ends its work in the container."""
        self.alive = False
        self._writer.close()


class RemoteFunctionScorer:
    """`FunctionScorer` in the container."""

    def __init__(self, server: RewardServerClient, rules: Sequence[Rule], *, workers: int) -> None:
        purpose = {"functions": [asdict(rule) for rule in rules]}
        self._rules = tuple(rules)
        self._bound = longest_seconds(rules) + SLACK_SECONDS
        self.pool = ProcessPool(workers, lambda: server.connect(purpose))

    async def __aenter__(self) -> Self:
        """Open the first connection, which shows whether the rules can be loaded.

        Raises as `FunctionScorer` does.
        """
        try:
            async with self.pool.acquire():
                return self
        except SandboxUnavailable as error:
            raise cannot_confine(self._rules, error) from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self.pool.close()

    async def score(self, prompt: object, response: str) -> Reward:
        """Return the weighted sum over the rules of the prompt's source.

        Raises `ScoreFailed`.
        """
        sample = base64.b64encode(pickle.dumps((prompt, response))).decode()
        try:
            async with self.pool.acquire() as connection:
                answer = await connection.ask({"sample": sample}, self._bound)
        except TimeoutError:
            detail = f"the rewards container gave no answer within {self._bound:g} s"
            raise ScoreFailed(Failure.TIMED_OUT, "*", detail) from None
        except (InvalidReward, SandboxUnavailable, RewardsNotReady) as error:
            # A later connection failed, unlike the first one.
            raise ScoreFailed(Failure.NOT_STARTED, "*", str(error)) from error
        if answer is None:
            raise ScoreFailed(Failure.CRASHED, "*", "the rewards container ended during the call")
        if "broken" in answer:
            raise ScoreFailed(Failure.CRASHED, "*", f"the rewards container: {answer['broken']}")
        if "failure" in answer:
            raise ScoreFailed(Failure(answer["failure"]), answer["rule"], answer["detail"])
        terms = {rule.name: float(answer["terms"][rule.name]) for rule in self._rules if scores(rule, prompt)}
        return Reward(float(answer["value"]), terms)


class RemoteSandbox:
    """`Sandbox` in the container."""

    def __init__(self, server: RewardServerClient, processes: int) -> None:
        self.pool = ProcessPool(processes, lambda: server.connect({"programs": True}))

    async def __aenter__(self) -> Self:
        """Open the first connection, which shows whether the container has a sandbox.

        Raises `SandboxUnavailable` and `RewardsNotReady`.
        """
        async with self.pool.acquire():
            return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self.pool.close()

    @property
    def processes_started(self) -> int:
        """Number of connections so far, each with a supervisor."""
        return self.pool.started

    async def run(self, program: Program) -> Run:
        """Run the program and return its end.

        Raises `SandboxFailed`.
        """
        bound = START_SECONDS + longest_run_seconds(program) + SLACK_SECONDS
        try:
            async with self.pool.acquire() as connection:
                answer = await connection.ask(vars(program), bound)
        except TimeoutError:
            raise SandboxFailed(f"the rewards container gave no answer within {bound:g} s") from None
        except (SandboxUnavailable, RewardsNotReady) as error:  # a later connection, unlike the first one
            raise SandboxFailed(str(error)) from error
        except MessageTooLong as error:
            raise SandboxFailed(f"the program and its input are too long: {error}") from error
        if answer is None:
            raise SandboxFailed("the rewards container ended while the program ran")
        if failed := answer.get("failed") or answer.get("broken"):
            raise SandboxFailed(failed)
        return Run(**{**answer, "end": End(answer["end"])})
