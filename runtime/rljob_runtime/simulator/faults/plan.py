"""Faults as values: a plan is drawn from a seed, printed, read back, and made smaller while it still fails."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultType(StrEnum):
    """What goes wrong."""

    CRASH = "crash"
    """The process ends at once, and cannot be started before the fault's end. Of a machine: its pod is gone, and the
    next one is there at the end."""
    HANG = "hang"
    """It stands still (SIGSTOP), and goes on at the end."""
    SLOW = "slow"
    """It and the messages to it take several times as long."""
    PARTITION = "partition"
    """Nothing gets through to it or from it."""
    LOSS = "loss"
    """Messages get lost."""
    DUPLICATION = "duplication"
    """Messages come twice."""
    REORDERING = "reordering"
    """Messages overtake each other; reads are stale."""
    CLOCK = "clock-skew"
    """Its clock runs at another rate than the others'."""
    DISK_FULL = "disk-full"
    """What it writes to has no space left."""
    DISK_LOST = "disk-lost"
    """A crash after which nothing is left of what it had written."""
    LEAVE = "leave"
    """Its pod is asked to go, as by `kubectl drain`, and killed at the fault's end. The next one comes when it has
    gone."""


class Role(StrEnum):
    """What a fault may befall."""

    REPLICA = "replica"
    """Or a gradient worker beside it."""
    RELAY = "relay"
    TRAINER = "trainer"
    REWARDS = "rewards"
    MACHINE = "machine"
    COORDINATOR = "coordinator"
    OFFICE = "coordinator/api"
    """The way from the coordinator's node to the API server."""
    API = "api"


_MESSAGES = (FaultType.PARTITION, FaultType.LOSS, FaultType.DUPLICATION, FaultType.REORDERING)
_PROCESS = (FaultType.CRASH, FaultType.HANG, FaultType.SLOW)

APPLICABLE: dict[Role, tuple[FaultType, ...]] = {
    Role.REPLICA: (*_PROCESS, *_MESSAGES, FaultType.CLOCK),
    Role.RELAY: (*_PROCESS, *_MESSAGES, FaultType.DISK_FULL),
    Role.TRAINER: (*_PROCESS, *_MESSAGES, FaultType.DISK_FULL, FaultType.LEAVE),
    Role.REWARDS: _PROCESS,
    Role.MACHINE: (*_PROCESS, *_MESSAGES, FaultType.CLOCK, FaultType.DISK_FULL),
    Role.COORDINATOR: (
        *_PROCESS,
        *_MESSAGES,
        FaultType.CLOCK,
        FaultType.DISK_FULL,
        FaultType.DISK_LOST,
        FaultType.LEAVE,
    ),
    Role.OFFICE: (FaultType.PARTITION,),
    Role.API: (FaultType.SLOW, FaultType.PARTITION, FaultType.LOSS, FaultType.REORDERING),
}
"""What can happen to what. The rest has no meaning: a replica writes no file, rewards run in the coordinator's pod and
get no messages, and nobody but a replica's polls goes by a clock of its own."""


def role_of(target: str) -> Role:
    """`rollout-0/replica-1`, `rollout-0/relay`, `rollout-0`, `trainer-0` (its pod), or a role's own name. Raises
    `ValueError`."""
    patterns = (
        (r"rollout-\d+/(replica-\d+|worker)", Role.REPLICA),
        (r"rollout-\d+/relay", Role.RELAY),
        (r"rollout-\d+|trainer-0", Role.MACHINE),
    )
    for pattern, role in patterns:
        if re.fullmatch(pattern, target):
            return role
    if target in (Role.TRAINER, Role.REWARDS, Role.COORDINATOR, Role.OFFICE, Role.API):
        return Role(target)
    raise ValueError(
        f"target {target!r} is nothing here; trainer, rewards, coordinator, coordinator/api, api, trainer-0, "
        "rollout-0, rollout-0/relay, rollout-0/worker or rollout-0/replica-0 would be right"
    )


@dataclass(frozen=True, order=True)
class Fault:
    """Seconds from the start of the run, in milliseconds' steps. Raises `ValueError` for what cannot happen."""

    time: float
    kind: FaultType
    target: str
    duration: float

    def __post_init__(self) -> None:
        role = role_of(self.target)
        if self.kind not in APPLICABLE[role]:
            raise ValueError(f"{self.kind} cannot befall {self.target}; {', '.join(APPLICABLE[role])} can")
        if not (0 <= self.time < 1e6 and 0 <= self.duration < 1e6):
            raise ValueError(f"time {self.time} and duration {self.duration} must be seconds from 0 to a million")

    @property
    def end(self) -> float:
        """When it is over."""
        return self.time + self.duration

    def __str__(self) -> str:
        return f"{self.time:g} {self.kind} {self.target} {self.duration:g}"


@dataclass(frozen=True)
class FaultPlan:
    """All faults of a run, in the order of their time."""

    faults: tuple[Fault, ...] = ()

    @property
    def end(self) -> float:
        """When the last one is over."""
        return max((fault.end for fault in self.faults), default=0.0)

    @property
    def planned(self) -> bool:
        """Whether it may cost no finished update: pods are asked to go, with time enough to save what they hold; or the
        coordinator alone is killed, and the next one comes before a suspension is carried out without it."""
        return all(map(_leaves_in_time, self.faults)) or all(map(_restarts_soon, self.faults))

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))

    def without(self, faults: Iterable[Fault]) -> FaultPlan:
        """The same plan with these left out."""
        out = set(faults)
        return FaultPlan(tuple(fault for fault in self.faults if fault not in out))

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """What `str` gives: `TIME KIND TARGET DURATION`, separated by `;` or by lines. Raises `ValueError` that names
        the fault."""
        faults = []
        for part in filter(None, (part.strip() for part in re.split(r"[;\n]", text))):
            words = part.split()
            try:
                time, kind, target, duration = words
                faults.append(Fault(float(time), _kind(kind), target, float(duration)))
            except ValueError as error:
                wrong = f"{len(words)} words" if len(words) != 4 else str(error)
                raise ValueError(
                    f"fault {part!r}: {wrong}; `TIME KIND TARGET DURATION`, as in `12.5 crash rollout-0 3`, "
                    "would be right"
                ) from None
        return cls(tuple(sorted(faults)))


def _leaves_in_time(fault: Fault) -> bool:
    return fault.kind is FaultType.LEAVE and fault.duration >= GRACE_SECONDS


def _restarts_soon(fault: Fault) -> bool:
    return (fault.kind, fault.target) == (FaultType.CRASH, Role.COORDINATOR.value) and fault.duration <= SOON_SECONDS


def _kind(word: str) -> FaultType:
    if word not in list(FaultType):
        raise ValueError(f"{word!r} is no kind of fault: {', '.join(FaultType)} are")
    return FaultType(word)


GRACE_SECONDS = 75.0
"""A pod's grace where the spec says nothing of it."""
SOON_SECONDS = 20.0
"""So late the next coordinator may come: a third of what the operator waits for at a suspension."""
CRASH_WEIGHT = 3
BURST_SHARE, BURST_SECONDS = 0.5, 2.0
LEAVE_SHARE = OFFICE_SHARE = 0.25


def draw_plan(
    seed: int,
    machines: int,
    replicas: int,
    horizon: float,
    most: int = 8,
    longest: float = 40.0,
    workers: bool = False,
) -> FaultPlan:
    """From one to `most` faults. Every role is as likely as the next; crashes are likelier than other kinds. Half of
    the faults come within seconds of another one, the rest anywhere before `horizon` seconds. Durations are spread over
    the scales, from a tenth of a second to `longest`. Into some of the plans comes a planned leave."""
    drawn = random.Random(f"{seed}/faults")
    targets = possible_targets(machines, replicas, workers)
    faults: list[Fault] = []
    for _ in range(drawn.randint(1, most)):
        role = drawn.choice([role for role in Role if role is not Role.OFFICE])
        kinds = [kind for kind in APPLICABLE[role] if kind is not FaultType.LEAVE]
        (kind,) = drawn.choices(kinds, [CRASH_WEIGHT if kind is FaultType.CRASH else 1 for kind in kinds])
        time = drawn.uniform(0, horizon)
        if faults and drawn.random() < BURST_SHARE:
            time = faults[-1].time + drawn.uniform(0, BURST_SECONDS)
        duration = 0.1 * (longest / 0.1) ** drawn.random()
        faults.append(Fault(round(time, 3), kind, drawn.choice(targets[role]), round(duration, 3)))
    # Drawn by themselves: the other faults of a seed stay what they were.
    leaves = random.Random(f"{seed}/leaves")
    if len(faults) < most and leaves.random() < LEAVE_SHARE:
        seconds = leaves.choice([1.0, GRACE_SECONDS])
        faults.append(_leave(leaves, leaves.choice(faults).time + leaves.uniform(-1, 1) * BURST_SECONDS, seconds))
    offices = random.Random(f"{seed}/office")
    if len(faults) < most and offices.random() < OFFICE_SHARE:
        time, seconds = offices.uniform(0, horizon), longest * offices.random()
        faults.append(Fault(round(time, 3), FaultType.PARTITION, Role.OFFICE.value, round(seconds, 3)))
    return FaultPlan(tuple(sorted(faults)))


def draw_leaves(seed: int, horizon: float) -> FaultPlan:
    """From one to four planned leaves before `horizon` seconds, and nothing else. Half of them come with another one,
    as when a node is drained that both pods are on."""
    drawn = random.Random(f"{seed}/planned")
    faults: list[Fault] = []
    for _ in range(drawn.randint(1, 4)):
        time = drawn.uniform(0, horizon)
        if faults and drawn.random() < BURST_SHARE:
            time = faults[-1].time + drawn.choice([0.0, drawn.uniform(0, BURST_SECONDS)])
        faults.append(_leave(drawn, time, GRACE_SECONDS))
    return FaultPlan(tuple(sorted(faults)))


def _leave(drawn: random.Random, time: float, seconds: float) -> Fault:
    target = drawn.choice([Role.TRAINER, Role.COORDINATOR])
    return Fault(round(max(0.0, time), 3), FaultType.LEAVE, target.value, seconds)


def possible_targets(machines: int, replicas: int, workers: bool = False) -> dict[Role, list[str]]:
    """Everything that a fault may befall in a job of this size, with gradient workers or without."""
    names = [f"rollout-{index}" for index in range(machines)]
    beside = [f"{name}/worker" for name in names] if workers else []
    return {
        Role.REPLICA: [f"{name}/replica-{index}" for name in names for index in range(replicas)] + beside,
        Role.RELAY: [f"{name}/relay" for name in names],
        Role.TRAINER: ["trainer"],
        Role.REWARDS: ["rewards"],
        Role.MACHINE: [*names, "trainer-0"],
        Role.COORDINATOR: ["coordinator"],
        Role.OFFICE: ["coordinator/api"],
        Role.API: ["api"],
    }


def shrink(plan: FaultPlan, fails: Callable[[FaultPlan], bool]) -> FaultPlan:
    """A smallest part of a failing plan that still fails: no single fault of it can be left out (delta debugging,
    Zeller and Hildebrandt 2002). `fails` is never asked twice about the same plan."""
    known: dict[FaultPlan, bool] = {}

    def still_fails(smaller: FaultPlan) -> bool:
        if smaller not in known:
            known[smaller] = fails(smaller)
        return known[smaller]

    parts = 2
    while plan.faults:
        for part in _cut(plan.faults, parts):
            smaller = plan.without(part)
            if still_fails(smaller):
                plan, parts = smaller, max(2, parts - 1)
                break
        else:
            if parts >= len(plan.faults):
                return plan
            parts = min(len(plan.faults), 2 * parts)
    return plan


def _cut(faults: Sequence[Fault], parts: int) -> list[Sequence[Fault]]:
    parts = min(parts, len(faults))
    edges = [len(faults) * part // parts for part in range(parts + 1)]
    return [faults[edges[part] : edges[part + 1]] for part in range(parts)]
