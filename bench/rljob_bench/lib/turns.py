"""Turns: a job whose rounds are generated in different ways, one after the other, on the same lengths.

The rounds of a block have the same lengths, prompt by prompt, so that they can be compared. The job's store, engines
and speeds are those of one job: what a static round shows of a size is known to the policy in the rounds after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from rljob_api import RLJob
from rljob_api.status import RoundReport
from rljob_bench.lib.memory_watch import held
from rljob_bench.lib.switches.planned_switch import planned_switch
from rljob_runtime.coordinator.coordinator import Coordinator
from rljob_runtime.coordinator.on_policy.loop import OnPolicyLoop
from rljob_runtime.local.control_plane import LocalControlPlane
from rljob_runtime.protocols import Job, TrainReport
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome, SwitchRules
from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State, SwitchCosts, carried_by
from rljob_runtime.scheduling.layouts.adaptive_switches import AdaptiveSwitches, snapshot_of
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch, SwitchableMachine, SwitchLook
from rljob_runtime.workloads import Workload

LOOK_SECONDS = 0.3
"""Between two looks of a round in which nothing is decided."""
ORDERED_STATES = (State.MIGRATE, State.MIGRATE, State.RECOMPUTE, State.RECOMPUTE)
"""There and back with the KV, there and back without it: neighbours carry almost the same responses."""


class Way(StrEnum):
    """How a round is generated."""

    STATIC = "static"
    ADAPTIVE = "adaptive"
    PLANNED = "planned"
    """With the switch that is planned, at its moment, also where it is not worth it (`planned_switch`)."""
    ORDERED = "ordered"
    """With switches there and back, each state in turn, whether they pay or not."""


@dataclass(frozen=True)
class Turn:
    """A round to play: which lengths, how, and the size at its start; None for the one that is predicted to be best."""

    block: int
    way: Way
    size: int | None = None


@dataclass(frozen=True)
class Glance:
    """A machine at the time of a look. `running`: responses and their context tokens, by replica."""

    at: float
    size: int
    tokens: Mapping[str, Mapping[TrajectoryKey, int]]
    running: Mapping[str, tuple[int, int]]
    waiting: int


@dataclass(frozen=True)
class Ordered:
    """A switch that the benchmark orders, whether it pays or not. `tokens`: context tokens that it carries.

    `cheaper`: the state that is predicted to take less time; None if no cost is known."""

    decision: SwitchDecision
    tokens: float
    cheaper: State | None


@dataclass
class Played:
    """A round that was played. `engines`: as they were known when it was looked at first. `costs`: at its end.

    `held`: bytes that all processes hold after it. `ended`: by the monotonic clock."""

    turn: Turn
    size: int
    glances: list[Glance] = field(default_factory=list)
    ordered: list[Ordered] = field(default_factory=list)
    switches: Sequence[LayoutSwitch] = ()
    engines: Mapping[int, SizedEngine] = field(default_factory=dict)
    costs: SwitchCosts = field(default_factory=SwitchCosts)
    report: RoundReport | None = None
    ended: float = 0.0
    held: int = 0

    @property
    def seconds(self) -> float:
        """Of generation."""
        found = self.report.generation_seconds if self.report is not None else None
        if found is None:
            raise RuntimeError(f"a round of {self.turn} has no report of its generation")
        return found


class Turns:
    """The rounds of a job, as they are played: its switch policy, its observer, and the size of its next round.

    `apart`: seconds between two ordered switches, at least."""

    def __init__(self, turns: Sequence[Turn], rules: SwitchRules, apart: float = 0.7) -> None:
        self.played: list[Played] = []
        self.coordinator: Coordinator | None = None
        self._turns = turns
        self._rules = rules
        self._apart = apart
        self._adaptive = AdaptiveSwitches(rules)
        self._looked = 0.0
        self._total = 0
        """Responses of the round."""

    # --- the size of the next round ---

    def size(self) -> int:
        """Return the size in which the next round begins."""
        done = len(self._reports)
        turn = self._turns[min(done, len(self._turns) - 1)]
        return turn.size or self._predicted()

    @property
    def _reports(self) -> list[RoundReport]:
        return [one.report for one in self.played if one.report is not None]

    def _predicted(self) -> int:
        """Return the size with the shortest predicted round. The newest forecasts include what switches save.

        Without forecasts it is the smallest size."""
        forecasts = next((one.layout_forecasts for one in reversed(self._reports) if one.layout_forecasts), None)
        if forecasts is None:
            return min(self._rules.sizes)
        return min(forecasts, key=lambda one: one.seconds).tensor_parallel_size

    def note(self, report: RoundReport, trained: TrainReport) -> None:
        """Record a round's report, as a `RoundObserver` does."""
        played = self.played[-1]
        played.report, played.ended, played.held = report, time.monotonic(), held()

    # --- SwitchPolicy ---

    def begin_round(self) -> None:
        """Begin to record a round."""
        self.played.append(Played(self._turns[len(self.played)], self.size()))
        self._adaptive.begin_round()
        self._looked = 0.0

    def is_due(self, done: int, total: int, now: float) -> bool:
        """Return whether to look at the machines now."""
        self._keep_switches()
        self._total = total
        way = self.played[-1].turn.way
        if way in (Way.ADAPTIVE, Way.PLANNED):
            due = self._adaptive.is_due(done, total, now)
        else:
            due = now - self._looked >= (self._apart if way is Way.ORDERED else LOOK_SECONDS)
        if due:
            self._looked = now
        return due

    def decide(self, look: SwitchLook) -> Mapping[str, SwitchDecision]:
        """Decide as this turn asks for, and record what was seen."""
        played = self.played[-1]
        played.engines, played.costs = played.engines or look.engines, look.costs
        for machine in look.machines:
            played.glances.append(_glance(machine, look, self._looked))
        match played.turn.way:
            case Way.ADAPTIVE:
                return self._adaptive.decide(look)
            case Way.PLANNED:
                made = {one.name: self._plan(one, look) for one in look.machines if self._may_order(one)}
                return {name: decision for name, decision in made.items() if decision is not None}
            case Way.ORDERED:
                return {one.name: self._order(one, look) for one in look.machines if self._may_order(one)}
            case _:
                return {}

    def _may_order(self, machine: SwitchableMachine) -> bool:
        return not _waiting(machine) and len(machine.responses) > 1 and bool(machine.sizes)

    def _plan(self, machine: SwitchableMachine, look: SwitchLook) -> SwitchDecision | None:
        if machine.switches:
            return None
        rules = replace(self._rules, sizes=frozenset(machine.sizes))
        return planned_switch(snapshot_of(machine, look), look.engines, look.costs, rules, self._total)

    def _order(self, machine: SwitchableMachine, look: SwitchLook) -> SwitchDecision:
        played, snapshot = self.played[-1], snapshot_of(machine, look)
        carried, target = carried_by(snapshot.running), machine.sizes[0]
        pair = look.costs.table(look.engines, snapshot.accelerators).get((machine.tensor_parallel, target))
        # Every other round begins with the other state.
        before = 2 * sum(one.turn.way is Way.ORDERED for one in self.played[:-1])
        state = ORDERED_STATES[(before + len(played.ordered)) % len(ORDERED_STATES)]
        decision = SwitchDecision(
            SwitchOutcome.SWITCHED,
            target,
            state,
            prefill_seconds=pair.predicted_prefill(carried) if pair is not None else 0.0,
        )
        cheaper = pair.of(carried).state if pair is not None else None
        played.ordered.append(Ordered(decision, carried.tokens, cheaper))
        return decision

    def _keep_switches(self) -> None:
        """Keep the list of the round's switches, to which its stage adds."""
        loop = self.coordinator.loop if self.coordinator is not None else None
        if isinstance(loop, OnPolicyLoop) and loop.generation is not None:
            self.played[-1].switches = loop.generation.switcher.switches


def _waiting(machine: SwitchableMachine) -> int:
    """Return the responses that wait for a launch, or in an engine of the machine: those that run do not run alone."""
    return machine.waiting + machine.queued


def _glance(machine: SwitchableMachine, look: SwitchLook, at: float) -> Glance:
    running = {
        name: (len(held), sum(one.prompt_tokens + one.generated for one in held))
        for name in machine.engines
        if (held := look.round_.by_replica.get(name, ()))
    }
    return Glance(at, machine.tensor_parallel, machine.engines, running, _waiting(machine))


class SizedTarget(LocalControlPlane):
    """A local control plane whose target has the size that `size` returns, in place of the operator's."""

    def __init__(self, job: RLJob, size: Callable[[], int]) -> None:
        super().__init__(job, lambda status: None)
        self._size = size

    async def observe(self) -> Job:
        """Return the job with this size as its target."""
        seen = await super().observe()
        status = seen.job.status
        if status.target is None:
            return seen
        size = self._size()
        sizes = status.target.tensor_parallel.model_copy(update={"short": size, "long": size})
        target = status.target.model_copy(update={"tensor_parallel": sizes})
        return Job(
            seen.job.model_copy(update={"status": status.model_copy(update={"target": target})}), seen.resource_version
        )

    def note(self, report: RoundReport, trained: TrainReport) -> None:
        """Have the target read again, as a `RoundObserver` does: another round follows."""
        self._changed.set()


class BlockLengths:
    """Tokens of responses, by a workload. The prompts of a round are numbered in the order of their launch.

    Rounds differ in their weight version, and no round's prompt is launched under two of them."""

    def __init__(self, workload: Workload, prompts: int, responses: int, turns: Sequence[Turn]) -> None:
        self._workload = workload
        self._prompts = prompts
        self._responses = responses
        self._turns = turns
        self._rounds: dict[int, dict[PromptKey, int]] = {}

    def of(self, key: TrajectoryKey, version: int) -> int:
        """Return the tokens of this response in the round of these weights."""
        numbers = self._rounds.setdefault(version, {})
        number = numbers.setdefault(key.prompt, len(numbers))
        block = self._turns[list(self._rounds).index(version)].block
        drawn: Any = self._workload.prompt(0, block * self._prompts + number, self._responses, 0)
        return int(drawn.responses[key.sample].output_tokens)
