"""Simulated runners: environments whose harnesses ask for turns, call tools, and fail in drawn ways.

They outlive coordinators, as the pods of environments do, and repeat their calls while none answers. Everything that a
harness does follows from the seed, the response and the attempt's rank among its attempts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeVar

from rljob_runtime.protocols.environments import Assignment, Environments, EpisodeReport, FailedPart
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.protocols.turns import (
    COORDINATOR_AWAY,
    AttemptEnded,
    EpisodeAttempt,
    TurnBounds,
    TurnCall,
    TurnRefused,
    Turns,
)
from rljob_runtime.simulator.core.tokens import digest

T = TypeVar("T")
log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.5
HEARTBEAT_SECONDS = 5.0
LEASE_SECONDS = 5.0
GIVEN_TOKEN = 5
"""The tokens of prompts and tools are this one: what they say does not matter here."""


class Door(Protocol):
    """What a coordinator offers to gateway and runners."""

    @property
    def turns(self) -> Turns: ...

    @property
    def environments(self) -> Environments: ...


class Fault(StrEnum):
    """What goes wrong in an attempt."""

    CRASH = "crash"
    """The runner dies in the middle: it is silent, and its calls end."""
    FAILURE = "failure"
    """The runner reports that a part of ours failed."""
    REWRITE = "rewrite"
    """The harness changes what it said before, so that its turn forks."""
    REPEAT = "repeat"
    """The harness sends each request twice."""
    SILENT = "silent"
    """The harness never calls the model."""


@dataclass(frozen=True)
class HarnessLaw:
    """How harnesses behave. `faults`: chances in a thousand, of an attempt."""

    turns: int = 4
    """Most turns of an episode; each has 1 to this many."""
    prompt_tokens: int = 12
    tool_tokens: int = 6
    tool_seconds: float = 0.5
    faults: tuple[tuple[Fault, int], ...] = ()
    seed: int = 0

    def turns_of(self, key: TrajectoryKey) -> int:
        """Return the number of turns of an episode."""
        return 1 + digest("turns", self.seed, str(key)) % self.turns

    def fault_of(self, key: TrajectoryKey, rank: int) -> Fault | None:
        """Return what goes wrong in the attempt of this rank."""
        drawn = digest("episode-fault", self.seed, str(key), rank) % 1000
        for fault, chance in self.faults:
            if drawn < chance:
                return fault
            drawn -= chance
        return None


class SimulatedRunners:
    """Runners of one environment. `door` returns what the present coordinator offers; None while there is none."""

    def __init__(self, environment: str, law: HarnessLaw, door: Callable[[], Door | None], runners: int = 2) -> None:
        self.counts: Counter[str] = Counter()
        """Reports by outcome, faults by name, tool calls, and turns that were answered."""
        self._environment = environment
        self._law = law
        self._door = door
        self._runners = runners
        self.played: set[TrajectoryKey] = set()
        """Responses whose harness ran to its end."""
        self._ranks: Counter[TrajectoryKey] = Counter()
        self._episodes: dict[str, dict[EpisodeAttempt, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Run all runners until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._runners):
                group.create_task(self._serve(f"runner-{number}"))

    async def _serve(self, name: str) -> None:
        held = self._episodes[name] = {}
        living = asyncio.create_task(self._heartbeat(name))
        try:
            while True:
                assignment = await self._ask(
                    lambda door: door.environments.lease(self._environment, name, LEASE_SECONDS)
                )
                if assignment is not None:
                    held[assignment.episode] = asyncio.create_task(self._play(name, assignment))
        finally:
            for task in (living, *held.values()):
                task.cancel()
            await asyncio.gather(living, *held.values(), return_exceptions=True)

    async def _heartbeat(self, name: str) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            held = self._episodes[name]
            for one in [one for one, task in held.items() if task.done()]:
                held.pop(one).result()
            for one in await self._ask(partial(self._tell, name, list(held))):
                if (task := held.pop(one, None)) is not None:
                    task.cancel()

    async def _tell(self, name: str, held: list[EpisodeAttempt], door: Door) -> Sequence[EpisodeAttempt]:
        return await door.environments.heartbeat(name, held)

    async def _play(self, name: str, assignment: Assignment) -> None:
        """Run one attempt to its end, or to its fault."""
        key = assignment.episode.key
        self._ranks[key] += 1
        fault = self._law.fault_of(key, self._ranks[key])
        if fault is not None:
            self.counts[fault] += 1
        try:
            report = await self._harness(assignment, fault)
            if report is None:
                # A dead runner says nothing any more.
                self._episodes[name].pop(assignment.episode, None)
                return
            await self._ask(lambda door: door.environments.done(name, assignment.episode, report))
            self.counts["done"] += 1
            self.played.add(key)
        except AttemptEnded:
            self.counts["ended"] += 1

    async def _harness(self, assignment: Assignment, fault: Fault | None) -> EpisodeReport | None:
        law, key = self._law, assignment.episode.key
        history = [GIVEN_TOKEN] * law.prompt_tokens
        turns = 0 if fault is Fault.SILENT else law.turns_of(key)
        for number in range(turns):
            if fault is Fault.REWRITE and number == turns - 1 and number:
                history = [GIVEN_TOKEN + 1, *history[1:]]
            try:
                history = await self._turn(assignment, number, history, fault is Fault.REPEAT)
            except TurnRefused:
                break
            if fault is Fault.CRASH and number == turns // 2:
                return None
            self.counts["tool calls"] += 1
            await asyncio.sleep(law.tool_seconds)
            history = history + [GIVEN_TOKEN] * law.tool_tokens
        if fault is Fault.FAILURE:
            return EpisodeReport(failed=FailedPart.TOOL_SERVER, detail="drawn")
        return EpisodeReport(reward=float(digest("reward", str(key)) % 2))

    async def _turn(self, assignment: Assignment, number: int, history: list[int], twice: bool) -> list[int]:
        name = f"{assignment.episode} {number} {len(history)}"
        call = TurnCall(
            assignment.episode, name, False, tuple(history), TurnBounds(8), b"{}", assignment.deadline
        )  # fmt: skip
        repeated = replace(call, retry=True)
        answer = await self._ask(lambda door: door.turns.turn(call), lambda door: door.turns.turn(repeated))
        if twice:
            again = await self._ask(lambda door: door.turns.turn(repeated))
            assert again.replayed, "a repeated request opens no turn"
            assert list(again.token_ids) == list(answer.token_ids), "a repeated request has the answer of the first"
        self.counts["turns"] += 1
        return [*history, *answer.token_ids]

    async def _ask(self, ask: Callable[[Door], Awaitable[T]], again: Callable[[Door], Awaitable[T]] | None = None) -> T:
        """Ask the coordinator until one answers. `again`: what is asked after a call whose answer was lost."""
        while True:
            if (door := self._door()) is not None:
                try:
                    return await ask(door)
                except COORDINATOR_AWAY:
                    ask = again or ask
            await asyncio.sleep(AGAIN_SECONDS)
