"""Simulated runners: processes of an environment that lease attempts, run their harnesses and report their ends.

They outlive coordinators, as the pods of environments do, and repeat their calls while none answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from rljob_runtime.protocols.environments import (
    Assignment,
    Environments,
    EpisodeReport,
    FailedPart,
    HarnessLimit,
    ToolCall,
)
from rljob_runtime.protocols.trajectory import FinishReason, TrajectoryKey
from rljob_runtime.protocols.turns import (
    COORDINATOR_AWAY,
    AttemptEnded,
    EpisodeAttempt,
    RecordedTurn,
    TurnBounds,
    TurnCall,
    TurnRefused,
    Turns,
)
from rljob_runtime.scheduling.episodes.resumption import Recovery
from rljob_runtime.simulator.core.events import (
    EXECUTED,
    REPLAYED,
    STORED,
    EpisodeReported,
    Observe,
    ToolCalled,
    unobserved,
)
from rljob_runtime.simulator.core.network import FaultState
from rljob_runtime.simulator.core.process_clock import ProcessClock
from rljob_runtime.simulator.peers.harness import OF_PROGRAM, Fault, HarnessScript

T = TypeVar("T")
log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.5
HEARTBEAT_SECONDS = 5.0
LEASE_SECONDS = 5.0
LEASED = 8
"""Most episodes of a lease."""
NO_BOUND = 1 << 30
"""Places for episodes of a runner that takes all it is given."""
GIVEN_TOKEN = 5
"""The tokens of prompts and tools are this one: what they say does not matter here."""


class Door(Protocol):
    """What a coordinator offers to gateway and runners."""

    @property
    def turns(self) -> Turns: ...

    @property
    def environments(self) -> Environments: ...


@dataclass
class RunnerProcess:
    """A runner. It can crash, hang and be slow, and its messages may not pass."""

    name: str
    condition: FaultState = field(default_factory=FaultState)
    pace: ProcessClock = field(default_factory=ProcessClock)
    crashed: asyncio.Event = field(default_factory=asyncio.Event)
    episodes: dict[EpisodeAttempt, asyncio.Task[None]] = field(default_factory=dict)
    missed: float = -math.inf
    """When a coordinator did not answer last."""
    _absent: int = 0
    """Number of crashes in force."""
    _back: asyncio.Event = field(default_factory=asyncio.Event)

    def refresh(self) -> None:
        """Apply a changed condition."""
        if self.condition.rate != self.pace.rate:
            self.pace.set(self.condition.rate)

    def crash(self) -> None:
        """End the process with its harnesses."""
        self._absent += 1
        self._back.clear()
        self.crashed.set()

    def come_back(self) -> None:
        """End a crash."""
        self._absent -= 1
        if not self._absent:
            self._back.set()

    async def present(self) -> None:
        """Wait while it cannot start."""
        if self._absent:
            await self._back.wait()
        self.crashed.clear()


DoorOf = Callable[[RunnerProcess], Door | None]
"""Returns what the present coordinator offers to a runner; None while there is none."""


class SimulatedRunners:
    """Runners of one environment."""

    def __init__(
        self,
        environment: str,
        script: HarnessScript,
        door: DoorOf,
        names: Sequence[str] = ("runner-0", "runner-1"),
        observe: Observe = unobserved,
        recovery: Recovery | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        """Reports by outcome, faults by name, tool calls, and turns that were answered."""
        self.processes = [RunnerProcess(name) for name in names]
        self._environment = environment
        self._script = script
        self._door = door
        self._observe = observe
        self._recovery = recovery
        """How they go on with attempts of others; None of an earlier package, which does not."""
        self.places = NO_BOUND
        """For episodes, of each runner."""
        self.played: set[TrajectoryKey] = set()
        """Responses whose harness ran to its end."""
        self._ranks: Counter[TrajectoryKey] = Counter()
        self._began: dict[int, int] = {}
        """The rank at which each attempt began."""

    async def run(self) -> None:
        """Run all runners until cancelled."""
        async with asyncio.TaskGroup() as group:
            for process in self.processes:
                group.create_task(self._lives(process))

    async def _lives(self, runner: RunnerProcess) -> None:
        """Run a runner, and start it again after each crash."""
        while True:
            await runner.present()
            work = asyncio.create_task(self._serve(runner))
            crash = asyncio.create_task(runner.crashed.wait())
            try:
                await asyncio.wait({work, crash}, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    work.result()
            finally:
                for task in (work, crash):
                    task.cancel()
                await asyncio.gather(work, crash, return_exceptions=True)

    async def _serve(self, runner: RunnerProcess) -> None:
        held = runner.episodes = {}
        living = asyncio.create_task(self._heartbeat(runner))
        try:
            while True:
                most = min(LEASED, await self._free_places(runner))
                assignments = await self._ask(runner, partial(self._lease, runner.name, most))
                if living.done():
                    living.result()
                for assignment in assignments:
                    held[assignment.episode] = asyncio.create_task(self._play(runner, assignment))
        finally:
            tasks = [living, *held.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _free_places(self, runner: RunnerProcess) -> int:
        """Return how many more episodes a runner can play; wait until it is at least one."""
        while not (free := self.places - sum(not task.done() for task in runner.episodes.values())) > 0:
            await asyncio.wait(runner.episodes.values(), return_when=asyncio.FIRST_COMPLETED)
            for one in [one for one, task in runner.episodes.items() if task.done()]:
                runner.episodes.pop(one).result()
        return free

    async def _lease(self, name: str, most: int, door: Door) -> Sequence[Assignment]:
        return await door.environments.lease(self._environment, name, LEASE_SECONDS, most, self._recovery is not None)

    async def _heartbeat(self, runner: RunnerProcess) -> None:
        while True:
            await runner.pace.sleep(HEARTBEAT_SECONDS)
            held = runner.episodes
            for one in [one for one, task in held.items() if task.done()]:
                held.pop(one).result()
            for one in await self._ask(runner, partial(self._tell, runner.name, list(held))):
                if (task := held.pop(one, None)) is not None:
                    task.cancel()

    async def _tell(self, name: str, held: list[EpisodeAttempt], door: Door) -> Sequence[EpisodeAttempt]:
        return await door.environments.heartbeat(self._environment, name, held)

    async def _play(self, runner: RunnerProcess, assignment: Assignment) -> None:
        """Run one attempt to its end, or to its fault."""
        episode = assignment.episode
        self._ranks[episode.key] += 1
        rank = self._ranks[episode.key]
        fault = self._fault(episode, rank)
        if fault is not None:
            self.counts[fault] += 1
        try:
            report = await self._harness_in_time(runner, assignment, fault, rank)
            if report is None:
                # Nothing names the attempt any more.
                runner.episodes.pop(episode, None)
                return
            failed = report.failed and report.failed.value
            self._observe(EpisodeReported(runner.name, episode.key, episode.attempt, report.reward, failed))
            for _ in range(2 if fault is Fault.REPORTS_TWICE else 1):
                await self._ask(
                    runner, lambda door: door.environments.done(self._environment, runner.name, episode, report)
                )
            self.counts["done"] += 1
            self.played.add(episode.key)
            if fault is Fault.ASKS_AFTER_END:
                await self._ask_after_end(runner, assignment)
        except AttemptEnded:
            self.counts["ended"] += 1

    def _fault(self, episode: EpisodeAttempt, rank: int) -> Fault | None:
        """Return what goes wrong. A program that runs again does what it did."""
        began = self._began.setdefault(episode.attempt, rank)
        if self._recovery is Recovery.RERUN and began != rank:
            self.counts["ran again"] += 1
            if (former := self._script.fault_of(episode.key, began)) in OF_PROGRAM:
                return former
        return self._script.fault_of(episode.key, rank)

    async def _harness_in_time(
        self, runner: RunnerProcess, assignment: Assignment, fault: Fault | None, rank: int
    ) -> EpisodeReport | None:
        """Run the harness, and end it at its deadline. The time is the policy's, if a coordinator always answered."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(None if fault is Fault.HANGS else assignment.deadline):
                return await self._harness(runner, assignment, fault, rank)
        except TimeoutError:
            if runner.missed >= began:
                self.counts["out of time in an outage"] += 1
                return EpisodeReport(failed=FailedPart.ENVIRONMENT, detail="the gateway was away in the episode's time")
            self.counts["out of time"] += 1
            return EpisodeReport(self._script.reward_of(assignment.episode.key, rank), limit=HarnessLimit.SECONDS)

    async def _harness(
        self, runner: RunnerProcess, assignment: Assignment, fault: Fault | None, rank: int
    ) -> EpisodeReport | None:
        script, key, known = self._script, assignment.episode.key, set[int]()
        first, history = 0, [GIVEN_TOKEN] * script.prompt_tokens_of(key)
        if (resume := assignment.resume) is not None:
            self.counts["resumed"] += 1
            first, history = json.loads(resume.request or json.dumps([first, history]))
            known = {call.node for call in resume.calls}
            for call in resume.calls if resume.replays else ():
                await self._call(runner, assignment, call.node, rank, replay=True)
        turns = 0 if fault is Fault.SILENT else script.turns_of(key)
        for number in range(first, turns):
            if fault is Fault.REWRITE and number == turns - 1 and number:
                history = [GIVEN_TOKEN + 1, *history[1:]]
            try:
                answer = await self._turn(runner, assignment, number, history, fault)
            except TurnRefused:
                self.counts["refused"] += 1
                break
            if fault is Fault.CRASH and number == turns // 2:
                return None
            if script.ends_when_cut and answer.finish_reason is FinishReason.LENGTH:
                break
            if answer.node not in known and script.calls_tools(key, number):
                await runner.pace.sleep(script.tool_seconds_of(key, number, fault))
                await self._call(runner, assignment, answer.node, rank)
            if fault is Fault.CRASH_AFTER_CALL and number == turns // 2:
                return None
            said = GIVEN_TOKEN
            if self._recovery is Recovery.RERUN and assignment.episode.resumption:
                said += script.differs(key, answer.node, rank)
            history = [*history, *answer.token_ids, *[said] * script.tool_tokens_of(key, number)]
        if fault is Fault.HANGS:
            # Until the coordinator ends the attempt: the answer to a heartbeat says so.
            await asyncio.get_running_loop().create_future()
        if fault is Fault.FAILURE:
            return EpisodeReport(failed=FailedPart.TOOL_SERVER, detail="drawn")
        if fault is Fault.LEAVES:
            return EpisodeReport(failed=FailedPart.RUNNER, detail="drawn")
        return EpisodeReport(reward=script.reward_of(key, rank), metrics={"tokens": len(history)})

    async def _call(
        self, runner: RunnerProcess, assignment: Assignment, node: int, rank: int, replay: bool = False
    ) -> None:
        """Execute the call of a turn; where calls are journaled, go on when it is stored."""
        self.counts["replayed calls" if replay else "tool calls"] += 1
        if self._recovery in (None, Recovery.RERUN):
            return
        episode = assignment.episode
        event = ToolCalled(runner.name, episode.key, episode.attempt, node, REPLAYED if replay else EXECUTED)
        self._observe(event)
        call = ToolCall(node, 0, "tool", "{}", self._script.observation_of(episode.key, node, rank, replay))
        await self._ask(runner, lambda door: door.environments.called(self._environment, runner.name, episode, call))
        self._observe(replace(event, what=STORED))

    async def _ask_after_end(self, runner: RunnerProcess, assignment: Assignment) -> None:
        """Request a turn and report a call of an attempt that has ended: both must be refused."""
        episode = assignment.episode
        turn = self._turn_call(assignment, self._script.turns_of(episode.key), [GIVEN_TOKEN])
        call = ToolCall(0, 0, "tool", "{}", "late")
        late: tuple[Callable[[Door], Awaitable[object]], ...] = (
            lambda door: door.turns.turn(turn),
            lambda door: door.environments.called(self._environment, runner.name, episode, call),
        )
        for ask in late:
            try:
                await self._ask(runner, ask)
            except AttemptEnded:
                self.counts["refused after the end"] += 1
            else:
                raise AssertionError(f"{episode} has ended, and {runner.name} is served as before")

    def _turn_call(self, assignment: Assignment, number: int, history: list[int]) -> TurnCall:
        return TurnCall(
            assignment.episode,
            f"{replace(assignment.episode, resumption=0)} {number} {len(history)} {sum(history)}",
            assignment.resume is not None,
            tuple(history),
            TurnBounds(self._script.most_tokens_of(assignment.episode.key, number)),
            json.dumps([number, history]).encode() if self._recovery else b"{}",
            assignment.deadline,
        )

    async def _turn(
        self, runner: RunnerProcess, assignment: Assignment, number: int, history: list[int], fault: Fault | None
    ) -> RecordedTurn:
        call = self._turn_call(assignment, number, history)
        if fault is Fault.SUBAGENTS:
            other = replace(call, digest=f"{call.digest} beside")
            answer, _ = await asyncio.gather(self._answer(runner, call), self._answer(runner, other))
        else:
            answer = await self._answer(runner, call)
        if fault is Fault.REPEAT:
            again = await self._ask(runner, lambda door: door.turns.turn(replace(call, retry=True)))
            assert again.replayed, "a repeated request opens no turn"
            assert list(again.token_ids) == list(answer.token_ids), "a repeated request has the answer of the first"
        self.counts["turns"] += 1
        return answer

    async def _answer(self, runner: RunnerProcess, call: TurnCall) -> RecordedTurn:
        return await self._ask(
            runner, lambda door: door.turns.turn(call), lambda door: door.turns.turn(replace(call, retry=True))
        )

    async def _ask(
        self,
        runner: RunnerProcess,
        ask: Callable[[Door], Awaitable[T]],
        again: Callable[[Door], Awaitable[T]] | None = None,
    ) -> T:
        """Ask the coordinator until one answers. `again`: what is asked after a call whose answer was lost."""
        while True:
            if (door := self._door(runner)) is not None:
                try:
                    return await ask(door)
                except COORDINATOR_AWAY:
                    ask = again or ask
            runner.missed = asyncio.get_running_loop().time()
            await asyncio.sleep(AGAIN_SECONDS)
