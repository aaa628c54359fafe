"""Switcher: changes the tensor parallel size of machines inside a generation stage (PAT §4).

A policy decides for each machine; the others go on generating. A machine that switches stops its responses and
returns all that it made of them, then gets its new layout and the round's weights, all in the background. Its
responses wait for it, and are launched on its new replicas with their tokens as prefix. Their keys and values are moved
(`kv_handover`) or computed again. A failure costs time, never tokens: a size that is refused leaves the machine in the
one before, and responses of a machine that is lost go elsewhere.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.fleet.machine import RolloutMachine, machine_of
from rljob_runtime.coordinator.store.records import OpenRound
from rljob_runtime.protocols import EngineStats, Replica
from rljob_runtime.protocols.trajectory import Lease, TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.guard import SurpriseGuard
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.adaptive_tp.snapshot import Running
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.layouts.fleet_layout import NO_SWITCHES, SwitchCount
from rljob_runtime.scheduling.layouts.layout_switch import (
    LayoutSwitch,
    SwitchableMachine,
    SwitchLook,
    SwitchPolicy,
    failure_of,
    most_telling,
    record_parts,
    record_prefill,
    replicas_of,
)
from rljob_runtime.scheduling.layouts.prefill_clock import PrefillClock, is_full
from rljob_runtime.scheduling.round_plan import Launch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Seen:
    """A machine at the time of a look. If it is another one now, a decision for it is void."""

    machine: RolloutMachine
    tensor_parallel: int
    replicas: tuple[Replica, ...]

    @classmethod
    def of(cls, machine: RolloutMachine) -> _Seen:
        return cls(machine, machine.tensor_parallel, machine.replicas)


class Switcher:
    """The switches of one round. `notify` is called when one has ended.

    `costs`: of this run's switches; those of this round are added."""

    def __init__(
        self,
        policy: SwitchPolicy,
        fleet: Fleet,
        sizes: Sequence[int],
        opened: OpenRound,
        notify: Callable[[], None],
        costs: SwitchCosts,
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._sizes = sizes
        self._step = opened.plan.step
        self._before = {} if opened.layout is None else opened.layout.switches
        """Switches of each machine in this round under former coordinators."""
        self._notify = notify
        self.costs = costs
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._looked: dict[str, _Seen] = {}
        self._guards: dict[str, SurpriseGuard] = {}
        self._running: dict[str, LayoutSwitch] = {}
        self._stopping: dict[str, RolloutMachine] = {}
        """Of these, the machines whose replicas still stop what they generate."""
        self._ended: dict[str, LayoutSwitch] = {}
        """Switches whose responses still wait for a launch."""
        self._placed: list[LayoutSwitch] = []
        """Switches whose responses have their replicas since the last launch."""
        self._prefills: dict[str, tuple[LayoutSwitch, PrefillClock]] = {}
        """Last switch of each machine, while some of its launched responses have no new token."""
        self._resumed: dict[str, list[LayoutSwitch]] = {}
        """Of each machine, its switches whose responses go on there."""
        self.switches: list[LayoutSwitch] = []
        """All switches of the round, in order."""
        self.decision: SwitchDecision | None = None
        """The decision that began the first switch, or else the most telling one of the round."""

    @property
    def before(self) -> SwitchCount:
        """Switches of the round that ended under former coordinators."""
        return sum(self._before.values(), NO_SWITCHES)

    def counts(self) -> Mapping[str, SwitchCount]:
        """Return the switches of the round that have ended, under former coordinators too, by machine."""
        counts = dict(self._before)
        for switch in self.switches:
            counts[switch.machine] = counts.get(switch.machine, NO_SWITCHES) + switch.count
        return {machine: count for machine, count in counts.items() if count.ended}

    @property
    def machines(self) -> Set[str]:
        """Machines that switch now: they generate nothing."""
        return self._running.keys()

    @property
    def stopping(self) -> Mapping[str, RolloutMachine]:
        """Of these machines, those whose replicas still stop what they generate. Nothing is launched there."""
        return self._stopping

    @property
    def longest_build(self) -> float | None:
        """The seconds of the longest build of engines that this coordinator has seen; None before the first."""
        return self._fleet.layouts.build_seconds

    def begin_round(self) -> None:
        """Tell the policy that a round begins."""
        self._policy.begin_round()

    def is_due(self, done: int, total: int) -> bool:
        """Return whether to look at the machines now, with `done` of `total` responses complete."""
        return len(self._sizes) > 1 and self._policy.is_due(done, total, self._clock())

    def candidates(self, waiting: Mapping[str, int]) -> list[SwitchableMachine]:
        """Return the machines of a look that may switch, without their responses.

        `waiting`: requests that wait in each replica's engine."""
        machines = [machine for machine in self._fleet.weights.loaded() if self._may_switch(machine)]
        self._looked = {machine.name: _Seen.of(machine) for machine in machines}
        return [self._view(machine, waiting) for machine in machines]

    def _may_switch(self, machine: RolloutMachine) -> bool:
        return machine.name not in self._running.keys() | self._ended.keys() and not machine.loaned

    def _view(self, machine: RolloutMachine, waiting: Mapping[str, int]) -> SwitchableMachine:
        refused = self._fleet.layouts.refused(machine.name)
        guard = self._guards.get(machine.name)
        layouts, before = self._fleet.layouts, self._before.get(machine.name, NO_SWITCHES).ended
        return SwitchableMachine(
            name=machine.name,
            tensor_parallel=machine.tensor_parallel,
            sizes=tuple(size for size in self._sizes if size != machine.tensor_parallel and size not in refused),
            engines={replica.name: {} for replica in machine.replicas},
            switches=before + sum(switch.machine == machine.name for switch in self.switches),
            closed=guard.closed if guard is not None else frozenset(),
            built=layouts.built(machine.name),
            discarded=layouts.ran(machine.name) - layouts.built(machine.name),
            queued=sum(waiting.get(replica.name, 0) for replica in machine.replicas),
        )

    def decide(self, look: SwitchLook) -> Mapping[str, SwitchDecision]:
        """Return the decision for each machine of a look. It may run in a thread.

        Raises what the policy raises, and `ValueError` for a decision that no machine of the look can follow."""
        decisions = self._policy.decide(look)
        machines = {machine.name for machine in look.machines}
        for name, decision in decisions.items():
            if name not in machines or decision.target not in (None, *self._sizes):
                raise ValueError(f"{name} shall switch to TP {decision.target}: it has TP {self._sizes}")
        return decisions

    def begin(self, name: str, decision: SwitchDecision, busy: bool) -> LayoutSwitch | None:
        """Begin what a look decided for a machine, and close the machine to launches; None if it does not switch.

        A machine that has changed since the look, or is not `busy` any more, does not switch. Its responses have to
        be stopped next; `stopped` and `start` follow."""
        if decision.outcome is not SwitchOutcome.SWITCHED or decision.target is None:
            self._record(decision)
            return None
        seen = self._looked[name]
        if not busy or not self._is_unchanged(seen) or decision.target in self._fleet.layouts.refused(name):
            self._record(replace(decision, outcome=SwitchOutcome.CHANGED))
            return None
        self._record(decision)
        engines = max(1, seen.tensor_parallel * len(seen.replicas) // decision.target)
        at = self._clock() - self._began
        switch = LayoutSwitch(name, seen.tensor_parallel, decision.target, decision, at, engines=engines)
        self._running[name] = switch
        self._stopping[name] = seen.machine
        self.switches.append(switch)
        return switch

    def policy_failed(self) -> None:
        """Record that the policy failed."""
        self._record(SwitchDecision(SwitchOutcome.POLICY_FAILED))

    def _is_unchanged(self, seen: _Seen) -> bool:
        loaded = {machine.name: machine for machine in self._fleet.weights.loaded()}
        machine = loaded.get(seen.machine.name)
        return machine is seen.machine and self._may_switch(machine) and _Seen.of(machine) == seen

    def _record(self, decision: SwitchDecision) -> None:
        if self.switches:
            return
        # At the last look of a round most machines are idle, which says nothing about the round.
        told = decision if self.decision is None else most_telling([decision, self.decision])
        if told is not None and (self.decision is None or self.decision.outcome is not told.outcome):
            log.info("round %d, layout switch: %s", self._step, told)
        self.decision = told

    def under_way(self) -> list[LayoutSwitch]:
        """Return the switches for whose machines responses wait now. They take no place on other machines."""
        return [*self._running.values(), *self._ended.values()]

    def stopped(self, switch: LayoutSwitch) -> RolloutMachine:
        """Return the machine of a switch whose responses have stopped: its replicas are no longer available."""
        return self._stopping.pop(switch.machine)

    def start(
        self, switch: LayoutSwitch, machine: RolloutMachine, responses: Sequence[TrajectoryKey], stop_seconds: float
    ) -> None:
        """Switch the machine in the background. `responses` were stopped, in `stop_seconds`, and wait for it.

        These include the export."""
        switch.responses = tuple(responses)
        switch.seconds["stop"] = max(0.0, stop_seconds - switch.seconds.get("export", 0.0))
        self._fleet.run_in_background(self._run(switch, machine))

    async def _run(self, switch: LayoutSwitch, machine: RolloutMachine) -> None:
        name, row = f"switch TP {switch.start} to {switch.target}", f"{switch.machine}/machine"
        with self._fleet.timeline.during(row, name, round=self._step, responses=len(switch.responses)):
            switch.seconds |= await self._fleet.weights.relayout(machine, switch.target)
        # A later machine may have the same name.
        switch.reached = machine.tensor_parallel if self._fleet.is_member(machine) else 0
        if switch.succeeded:
            record_parts(self.costs, switch)
            guard = self._guards.setdefault(switch.machine, SurpriseGuard())
            # The state of the responses is not measured yet.
            predicted = switch.decision.seconds if switch.decision is not None else None
            guard.switched(switch.start, switch.target, switch.at, max(switch.total_seconds, predicted or 0.0))
        else:
            self._fleet.timeline.event("LayoutSwitchFailed", failure_of(switch), row, round=self._step)
        self._ended[switch.machine] = self._running.pop(switch.machine)
        log.info("round %d, layout switch of %s", self._step, switch)
        self._notify()

    def placement(
        self, replicas: Collection[str], running_of: Callable[[TrajectoryKey], Running]
    ) -> Mapping[TrajectoryKey, str | None]:
        """Return where waiting responses of switched machines are launched; None: not now. Others go anywhere.

        `replicas`: those that may take requests. `running_of`: a response with its tokens so far.
        """
        placed: dict[TrajectoryKey, str | None] = {}
        for switch in self._running.values():
            placed |= dict.fromkeys(switch.responses)
        for switch in list(self._ended.values()):
            own = sorted(name for name in replicas if machine_of(name) == switch.machine)
            if own:
                placed |= replicas_of({key: running_of(key) for key in switch.responses}, own)
                self._placed.append(switch)
            elif any(machine.name == switch.machine for machine in self._fleet.weights.loaded()):
                # Its replicas are tracked soon.
                placed |= dict.fromkeys(switch.responses)
                continue
            del self._ended[switch.machine]
        return placed

    def record_launches(self, launches: Sequence[Launch]) -> None:
        """Record what was launched by the last `placement`: of switched machines, the prefill begins."""
        placed, self._placed = self._placed, []
        elsewhere = {one.key for one in launches}
        for switch in placed:
            own = set(switch.responses)
            if begun := [one for one in launches if one.key in own and machine_of(one.lease.replica) == switch.machine]:
                self._prefills[switch.machine] = switch, PrefillClock(begun, self._clock())
                switch.resumed = frozenset(one.key for one in begun)
                self._resumed.setdefault(switch.machine, []).append(switch)
                elsewhere -= switch.resumed
        for switch in itertools.chain.from_iterable(self._resumed.values()):
            # Its machine was lost or loaned: the responses end on another one.
            switch.scattered |= not elsewhere.isdisjoint(switch.resumed)

    def record_tokens(self, replica: str, key: TrajectoryKey) -> None:
        """Record that a replica has made tokens of a response."""
        if not self._resumed:
            return
        machine, now = machine_of(replica), self._clock()
        for switch in self._resumed.get(machine, ()):
            if key in switch.resumed:
                switch.last_token = now - self._began
        if (pending := self._prefills.get(machine)) is not None:
            pending[1].record_token(key, now)

    def record_stats(self, replica: str, stats: EngineStats) -> None:
        """Record the statistics of a replica's engine, after the tokens of the same poll."""
        pending = self._prefills.get(machine_of(replica))
        if pending is not None and is_full(stats):
            pending[1].record_full(replica)

    def end_prefills(self, lease_of: Callable[[TrajectoryKey], Lease | None]) -> None:
        """Measure the prefills that have ended. `lease_of`: of a response that is generated; None for others."""
        for machine, (switch, clock) in list(self._prefills.items()):
            clock.retain(lease_of)
            if clock.has_ended:
                del self._prefills[machine]
                record_prefill(self.costs, switch, clock)
