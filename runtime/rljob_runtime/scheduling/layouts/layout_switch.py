"""Layout switch: a machine that may change its tensor parallel size inside a round, and where its responses go on.

The policy is injected, so that the simulator can force switches. All other choices of a switch are made here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rljob_runtime.protocols import KvExport, KvRefusal, KvSize, KvStats, Mismatch
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.packing import pack
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.adaptive_tp.snapshot import Running, SizedEngine
from rljob_runtime.scheduling.adaptive_tp.switch_costs import Part, State, SwitchCosts
from rljob_runtime.scheduling.layouts.fleet_layout import NO_SWITCHES, SwitchCount
from rljob_runtime.scheduling.layouts.prefill_clock import PrefillClock
from rljob_runtime.scheduling.lending.gain import RoundSnapshot
from rljob_runtime.scheduling.round_plan import Launch


@dataclass(frozen=True)
class SwitchableMachine:
    """A machine of a round that may switch now.

    `sizes`: the other sizes that it may have. `engines`: the unfinished responses of each replica, with their tokens so
    far. `waiting`: responses of the round that no replica has. `queued`: of its own, those that wait in its engines.
    `switches`: of this machine in this round. `closed`: (from, to) that it does not use again in this round. `built`:
    sizes that it has engines of; None: of every size. `discarded`: those whose engines it gave up for memory.
    """

    name: str
    tensor_parallel: int
    sizes: tuple[int, ...]
    engines: Mapping[str, Mapping[TrajectoryKey, int]]
    waiting: int = 0
    switches: int = 0
    closed: frozenset[tuple[int, int]] = frozenset()
    built: frozenset[int] | None = None
    queued: int = 0
    discarded: frozenset[int] = frozenset()

    @property
    def responses(self) -> Mapping[TrajectoryKey, int]:
        """All unfinished responses of the machine."""
        return {key: tokens for held in self.engines.values() for key, tokens in held.items()}


def with_responses(
    machines: Iterable[SwitchableMachine], held: Iterable[tuple[Launch, int]], waiting: int
) -> list[SwitchableMachine]:
    """Return the machines with their responses.

    `held`: the launches that generate, with their tokens so far. `waiting`: responses of the round that no replica has.
    """
    engines: dict[str, dict[TrajectoryKey, int]] = {}
    for launch, tokens in held:
        engines.setdefault(launch.lease.replica, {})[launch.key] = tokens
    return [
        replace(
            machine,
            engines={name: engines.get(name, {}) for name in machine.engines},
            waiting=waiting,
        )
        for machine in machines
    ]


@dataclass(frozen=True)
class SwitchLook:
    """What a policy decides from: the machines that may switch now, and their round.

    `sizes`: tensor parallel size of each replica. `engines`: those of every size whose speed is known. `costs`: of
    switches so far. `rounds`: of the job, from this one on."""

    machines: Sequence[SwitchableMachine]
    round_: RoundSnapshot
    sizes: Mapping[str, int] = field(default_factory=dict)
    engines: Mapping[int, SizedEngine] = field(default_factory=dict)
    costs: SwitchCosts = field(default_factory=SwitchCosts)
    rounds: int = 1


class SwitchPolicy(Protocol):
    """Decides whether machines switch."""

    def begin_round(self) -> None:
        """Begin a round: no response of it is complete."""
        ...

    def is_due(self, done: int, total: int, now: float) -> bool:
        """Return whether to look at the machines now, with `done` of `total` responses complete."""
        ...

    def decide(self, look: SwitchLook) -> Mapping[str, SwitchDecision]:
        """Return the decision for each machine. It may run in a thread, and its result may come too late."""
        ...


class NeverSwitch:
    """The policy of a job whose machines keep their size in a round."""

    def begin_round(self) -> None:
        """Do nothing."""

    def is_due(self, done: int, total: int, now: float) -> bool:
        """Return False."""
        return False

    def decide(self, look: SwitchLook) -> Mapping[str, SwitchDecision]:
        """Return no decision."""
        return {}


@dataclass
class LayoutSwitch:
    """A switch of a machine from size `start` to size `target`.

    `decision`: what was predicted. `at`: when it began, in seconds since generation began. `responses`: those that wait
    for it. `seconds`: duration of each part so far. `reached`: the size that the machine has after it; 0 if lost.
    `exported_tokens`, `exported_bytes`: KV that the old engines wrote. `imported_tokens`: those of them that the new
    engines took so far. `engines`: those of size `target` that the machine has after it. `resumed`: the responses that
    go on there. `last_token`: when one of them made its last tokens there, in seconds since generation began.
    `scattered`: one of them goes on elsewhere. `not_written`: responses whose KV should have moved, and why the old
    engines wrote none. `not_taken`: responses whose KV the new engines did not take, by the reason.
    """

    machine: str
    start: int
    target: int
    decision: SwitchDecision | None = None
    at: float = 0.0
    responses: tuple[TrajectoryKey, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    reached: int | None = None
    exported_tokens: int = 0
    exported_bytes: int = 0
    imported_tokens: int = 0
    engines: int = 1
    resumed: frozenset[TrajectoryKey] = frozenset()
    last_token: float | None = None
    scattered: bool = False
    not_written: dict[TrajectoryKey, KvRefusal] = field(default_factory=dict)
    not_taken: Counter[Mismatch] = field(default_factory=Counter)

    @property
    def moves_kv(self) -> bool:
        """Whether the old engines shall write the KV of their responses: that is predicted to be faster, or wanted."""
        return self.decision is not None and self.decision.state is State.MIGRATE

    @property
    def state(self) -> State | None:
        """How the responses were carried over, KV of at least one or none; None without a response."""
        if not self.responses:
            return None
        return State.MIGRATE if self.imported_tokens else State.RECOMPUTE

    @property
    def recomputed(self) -> Counter[str]:
        """Carried responses whose KV should have moved and did not, by the reason in a word."""
        found = Counter({cause.value.capitalize(): count for cause, count in self.not_taken.items()})
        return found + Counter(self.not_written[key].value for key in self.responses if key in self.not_written)

    @property
    def moved_bytes(self) -> int:
        """Bytes of KV that the new engines took so far."""
        return self.exported_bytes * self.imported_tokens // self.exported_tokens if self.exported_tokens else 0

    @property
    def succeeded(self) -> bool:
        """Whether the machine generates in the target size."""
        return self.reached == self.target

    @property
    def count(self) -> SwitchCount:
        """It, if it has ended."""
        if self.reached is None:
            return NO_SWITCHES
        return SwitchCount(made=1) if self.succeeded else SwitchCount(failed=1)

    @property
    def total_seconds(self) -> float:
        """Seconds of all parts so far."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in self.seconds.items())
        count = len(self.responses)
        return f"{self.machine}: {self.start} → {self.target}, reached {self.reached}, {count} responses: {parts}"


def failure_of(switch: LayoutSwitch) -> str:
    """Return how a switch failed.

    >>> failure_of(LayoutSwitch("rollout-0", 1, 2, reached=1))
    'rollout-0 keeps TP 1, TP 2 is refused'
    """
    if switch.reached:
        return f"{switch.machine} keeps TP {switch.reached}, TP {switch.target} is refused"
    return f"{switch.machine} was lost on the way from TP {switch.start} to TP {switch.target}"


PARTS = {
    "stop": Part.DRAIN,
    "release": Part.SLEEP,
    "start": Part.WAKE,
    "build": Part.BUILD,
    "load": Part.LOAD,
}
"""The measured parts of a switch that do not depend on its responses."""


STOP_SECONDS = 60.0
"""Time that a machine has at least to stop: a shorter one loses machines that are only busy."""
SLOW = 4.0
"""Times its prediction that a switch may take to stop: predictions before the first measurement are rough."""


def stop_bound(switch: LayoutSwitch) -> float:
    """Return the seconds within which a machine has to stop, and to write its KV.

    >>> stop_bound(LayoutSwitch("a", 1, 2))
    60.0
    >>> stop_bound(LayoutSwitch("a", 1, 2, SwitchDecision(SwitchOutcome.SWITCHED, 2, seconds=30.0)))
    120.0
    >>> built = SwitchDecision(SwitchOutcome.SWITCHED, 2, seconds=30.0, build=80.0, unpaid=70.0)
    >>> stop_bound(LayoutSwitch("a", 1, 2, built))
    80.0
    """
    decision = switch.decision
    if decision is None or decision.seconds is None:
        return STOP_SECONDS
    # Engines are built after the stop.
    return max(STOP_SECONDS, SLOW * (decision.seconds - (decision.build - decision.unpaid)))


def record_parts(costs: SwitchCosts, switch: LayoutSwitch) -> None:
    """Record the parts of a switch that reached its size."""
    for name, seconds in switch.seconds.items():
        if (part := PARTS.get(name)) is not None:
            costs.record(switch.start, switch.target, part, 1, seconds)


def record_visit(
    costs: SwitchCosts, start: int, target: int, there: Mapping[str, float], back: Mapping[str, float]
) -> None:
    """Record what a visit of a resting machine says of switches: the seconds of each part, there and back."""
    for pair, seconds in (((start, target), there), ((target, start), back)):
        for name, part in PARTS.items():
            if name in seconds:
                costs.record(*pair, part, 1, seconds[name])


def record_probes(costs: SwitchCosts, start: int, target: int, probes: Iterable[KvStats]) -> None:
    """Record the KV that engines of size `target` moved while their machine, which has size `start`, visited it.

    Their export counts for switches from `target` to `start`, their import for switches from `start` to `target`."""
    most = max(probes, key=lambda probe: probe.exported_bytes, default=KvStats())
    even = most.exported_bytes / target
    busiest = even if costs.kv is None else most.exported_tokens * costs.kv.accelerator_bytes(target)
    costs.record(target, start, Part.EXPORT, busiest, most.export_seconds)
    costs.record(start, target, Part.IMPORT, most.imported_bytes, most.import_seconds)


LEAST_PREFILL = 0.2
"""Predicted seconds of a shorter prefill say nothing of a longer one: its measurement is mostly launch and poll."""


def record_prefill(costs: SwitchCosts, switch: LayoutSwitch, clock: PrefillClock) -> None:
    """Record the prefill after a switch in it, and in the costs if its seconds were predicted.

    That is: all responses were computed again, to their first new token, in the size that was meant."""
    if (seconds := clock.seconds) is None:
        return
    switch.seconds["import" if switch.exported_tokens else "prefill"] = seconds
    decision, foreseen = switch.decision, switch.succeeded and not switch.exported_tokens and clock.is_complete
    if decision is not None and foreseen and decision.prefill_seconds >= LEAST_PREFILL:
        costs.record(switch.start, switch.target, Part.PREFILL, decision.prefill_seconds, seconds)


def record_export(costs: SwitchCosts, switch: LayoutSwitch, receipts: Sequence[KvExport], kv: KvSize | None) -> None:
    """Record the KV that a machine's replicas wrote, at least one of them. They write at the same time.

    `kv`: its size; None if unknown, then each accelerator has an even share."""
    most = max(receipts, key=lambda receipt: receipt.nbytes)
    tokens = sum(most.tokens.values())
    busiest = most.nbytes / switch.start if kv is None else tokens * kv.accelerator_bytes(switch.start)
    costs.record(switch.start, switch.target, Part.EXPORT, busiest, most.seconds)
    switch.seconds["export"] = max(receipt.seconds for receipt in receipts)
    switch.exported_tokens = sum(sum(receipt.tokens.values()) for receipt in receipts)
    switch.exported_bytes = sum(receipt.nbytes for receipt in receipts)


def record_import(costs: SwitchCosts, switch: LayoutSwitch, taken: Sequence[KvStats]) -> None:
    """Record the KV that each of a machine's new replicas took, and what they did not take."""
    for one in taken:
        switch.not_taken.update(one.unused)
    taken = [one for one in taken if one.imported_bytes > 0 and one.import_seconds >= 0]
    switch.imported_tokens = sum(one.imported_tokens for one in taken)
    if taken and switch.succeeded:
        most = max(taken, key=lambda one: one.imported_bytes)
        costs.record(switch.start, switch.target, Part.IMPORT, most.imported_bytes, most.import_seconds)


TELLING = tuple(SwitchOutcome)
"""Outcomes, the most telling one first."""


def most_telling(decisions: Iterable[SwitchDecision]) -> SwitchDecision | None:
    """Return the decision that says most about a round with these: what happened, else what came nearest to it.

    >>> most_telling([SwitchDecision(SwitchOutcome.IDLE), SwitchDecision(SwitchOutcome.NO_GAIN, gain=1.0)]).outcome
    <SwitchOutcome.NO_GAIN: 'NoGain'>
    """
    return min(decisions, key=lambda one: (TELLING.index(one.outcome), -(one.gain or 0.0)), default=None)


@dataclass(frozen=True)
class Expected:
    """Where responses go on whose machines switch now: a name for each engine to come, and its size."""

    replicas: Mapping[TrajectoryKey, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


def expected_of(
    switches: Iterable[LayoutSwitch],
    waits: Callable[[TrajectoryKey], bool],
    running_of: Callable[[TrajectoryKey], Running],
) -> Expected:
    """Return where the responses of these switches are expected to go on: they take part in the round's race.

    `waits`: of a response whether it is still in the round, and no replica has it. `running_of`: its tokens so far.

    >>> from rljob_runtime.protocols.trajectory import PromptKey
    >>> key = TrajectoryKey(PromptKey(0, 0), 0)
    >>> switch = LayoutSwitch("a", 1, 2, responses=(key,), engines=2)
    >>> found = expected_of([switch], lambda key: True, lambda key: Running(1, 9))
    >>> found.replicas[key], found.sizes
    ('a/switched-0', {'a/switched-0': 2, 'a/switched-1': 2})
    """
    replicas, sizes = dict[TrajectoryKey, str](), dict[str, int]()
    for switch in switches:
        names = [f"{switch.machine}/switched-{number}" for number in range(switch.engines)]
        sizes |= dict.fromkeys(names, switch.target)
        replicas |= replicas_of({key: running_of(key) for key in switch.responses if waits(key)}, names)
    return Expected(replicas, sizes)


def replicas_of(responses: Mapping[TrajectoryKey, Running], replicas: Sequence[str]) -> dict[TrajectoryKey, str]:
    """Return the replica of each response, given their tokens so far; empty without a replica.

    A decision is played with the same `packing.pack`, in which siblings are those of one prompt.

    >>> from rljob_runtime.protocols.trajectory import PromptKey
    >>> key = lambda index: TrajectoryKey(PromptKey(0, index), 0)
    >>> tokens = {key(0): 3, key(1): 9, key(2): 5}
    >>> list(replicas_of({key: Running(1, made) for key, made in tokens.items()}, ["a", "b"]).values())
    ['a', 'b', 'b']
    """
    if not replicas:
        return {}
    prompts = sorted({key.prompt for key in responses})
    groups = {prompt: number for number, prompt in enumerate(prompts)}
    packed = pack(sorted(responses), len(replicas), lambda key: replace(responses[key], group=groups[key.prompt]))
    return {key: name for name, keys in zip(sorted(replicas), packed, strict=True) for key in keys}
