"""Fault plan: faults as values, drawn from a seed, printed, parsed, and reduced while they still fail."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultType(StrEnum):
    """Kinds of faults."""

    CRASH = "crash"
    """The process ends immediately and cannot start before the fault's end. A machine's pod is replaced at the end."""
    HANG = "hang"
    """The process stands still (SIGSTOP) until the end."""
    SLOW = "slow"
    """The process and messages to it take several times as long."""
    PARTITION = "partition"
    """No message passes in either direction."""
    LOSS = "loss"
    """Messages are lost."""
    DUPLICATION = "duplication"
    """Messages arrive twice."""
    REORDERING = "reordering"
    """Messages overtake each other; reads are stale."""
    CLOCK = "clock-skew"
    """Its clock runs at another rate."""
    DISK_FULL = "disk-full"
    """Its volume has no space left."""
    DISK_LOST = "disk-lost"
    """A crash that deletes everything it wrote."""
    KV_DAMAGED = "kv-damaged"
    """Files with keys and values that engines of the machine write have wrong bits."""
    LAYOUT_REFUSED = "layout-refused"
    """Its engines of further tensor parallel sizes do not start."""
    LEAVE = "leave"
    """Its pod is deleted gracefully, as by `kubectl drain`, and killed at the fault's end. The next pod is created
    after it has gone."""


class Role(StrEnum):
    """Possible targets of a fault."""

    REPLICA = "replica"
    """Or a gradient worker on the same machine."""
    RELAY = "relay"
    TRAINER = "trainer"
    REWARDS = "rewards"
    MACHINE = "machine"
    COORDINATOR = "coordinator"
    COORDINATOR_API = "coordinator/api"
    """The link from the coordinator's node to the API server."""
    API = "api"
    GATEWAY = "gateway"
    """Of a job with environments, in the coordinator's pod."""
    RUNNER = "runner"
    """Of an environment."""


_MESSAGES = (FaultType.PARTITION, FaultType.LOSS, FaultType.DUPLICATION, FaultType.REORDERING)
_PROCESS = (FaultType.CRASH, FaultType.HANG, FaultType.SLOW)

APPLICABLE: dict[Role, tuple[FaultType, ...]] = {
    Role.REPLICA: (*_PROCESS, *_MESSAGES, FaultType.CLOCK, FaultType.LAYOUT_REFUSED),
    Role.RELAY: (*_PROCESS, *_MESSAGES, FaultType.DISK_FULL),
    Role.TRAINER: (*_PROCESS, *_MESSAGES, FaultType.DISK_FULL, FaultType.LEAVE),
    Role.REWARDS: _PROCESS,
    Role.MACHINE: (*_PROCESS, *_MESSAGES, FaultType.CLOCK, FaultType.DISK_FULL, FaultType.KV_DAMAGED),
    Role.COORDINATOR: (
        *_PROCESS,
        *_MESSAGES,
        FaultType.CLOCK,
        FaultType.DISK_FULL,
        FaultType.DISK_LOST,
        FaultType.LEAVE,
    ),
    Role.COORDINATOR_API: (FaultType.PARTITION,),
    Role.API: (FaultType.SLOW, FaultType.PARTITION, FaultType.LOSS, FaultType.REORDERING),
    Role.GATEWAY: (*_PROCESS, FaultType.PARTITION, FaultType.LOSS, FaultType.REORDERING),
    Role.RUNNER: (*_PROCESS, FaultType.PARTITION, FaultType.LOSS, FaultType.REORDERING),
}
"""Meaningful combinations. For example, a replica writes no file, rewards run in the coordinator's pod and receive no
messages, only a replica's polls depend on a clock of its own, and runners call by HTTP, which duplicates nothing."""


def role_of(target: str) -> Role:
    """Return the role of a target. Raises `ValueError`.

    Targets are `rollout-0/replica-1`, `rollout-0/relay`, `rollout-0`, `trainer-0` (its pod), or a role's own name."""
    patterns = (
        (r"rollout-\d+/(replica-\d+|worker)", Role.REPLICA),
        (r"rollout-\d+/relay", Role.RELAY),
        (r"rollout-\d+|trainer-0", Role.MACHINE),
        (r"runner-\d+", Role.RUNNER),
    )
    for pattern, role in patterns:
        if re.fullmatch(pattern, target):
            return role
    if target in (Role.TRAINER, Role.REWARDS, Role.COORDINATOR, Role.COORDINATOR_API, Role.API, Role.GATEWAY):
        return Role(target)
    raise ValueError(
        f"target {target!r} is nothing here; trainer, rewards, coordinator, coordinator/api, api, gateway, runner-0, "
        "trainer-0, rollout-0, rollout-0/relay, rollout-0/worker or rollout-0/replica-0 would be right"
    )


@dataclass(frozen=True, order=True)
class Fault:
    """A fault, in seconds from the start of the run, rounded to milliseconds.

    Raises `ValueError` for an impossible one."""

    time: float
    kind: FaultType
    target: str
    duration: float

    def __post_init__(self) -> None:
        role = role_of(self.target)
        if self.kind not in APPLICABLE[role]:
            raise ValueError(f"{self.kind} does not apply to {self.target}; {', '.join(APPLICABLE[role])} do")
        if not (0 <= self.time < 1e6 and 0 <= self.duration < 1e6):
            raise ValueError(f"time {self.time} and duration {self.duration} must be seconds from 0 to a million")

    @property
    def end(self) -> float:
        """Time of its end."""
        return self.time + self.duration

    def __str__(self) -> str:
        return f"{self.time:g} {self.kind} {self.target} {self.duration:g}"


@dataclass(frozen=True)
class FaultPlan:
    """All faults of a run, ordered by time."""

    faults: tuple[Fault, ...] = ()

    @property
    def end(self) -> float:
        """Time of the last end."""
        return max((fault.end for fault in self.faults), default=0.0)

    @property
    def planned(self) -> bool:
        """Whether the plan may cost no finished update.

        Pods are deleted gracefully with enough time to save, or only the coordinator is killed and the next one starts
        before a suspension proceeds without it."""
        return all(map(_leaves_in_time, self.faults)) or all(map(_restarts_soon, self.faults))

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))

    def without(self, faults: Iterable[Fault]) -> FaultPlan:
        """Return the plan without these faults."""
        out = set(faults)
        return FaultPlan(tuple(fault for fault in self.faults if fault not in out))

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Parse the output of `str`: `TIME KIND TARGET DURATION`, separated by `;` or lines.

        Raises `ValueError` that names the fault."""
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
"""A pod's default grace period."""
SOON_SECONDS = 20.0
"""Latest start of the next coordinator: a third of the operator's wait at a suspension."""
CRASH_WEIGHT = 3
BURST_SHARE, BURST_SECONDS = 0.5, 2.0
LEAVE_SHARE = API_LOSS_SHARE = KV_DAMAGE_SHARE = 0.25
REFUSAL_SHARE = 0.5
MOST_EPISODE_FAULTS = 3
_DRAWN_APART = (FaultType.LEAVE, FaultType.KV_DAMAGED, FaultType.LAYOUT_REFUSED)
_ROLES_APART = (Role.COORDINATOR_API, Role.GATEWAY, Role.RUNNER)
"""Drawn from separate streams: the other faults of a seed do not change."""


def draw_plan(
    seed: int,
    machines: int,
    replicas: int,
    horizon: float,
    most: int = 8,
    longest: float = 40.0,
    workers: bool = False,
    runners: int = 0,
    layouts: bool = False,
) -> FaultPlan:
    """Draw one to `most` faults.

    Roles are equally likely; crashes are more likely than other kinds. Half of the faults start within seconds of
    another one, the rest anywhere before `horizon` seconds. Durations range over all scales from a tenth of a second to
    `longest`. Some plans contain a graceful deletion. With `runners`, most have faults of the
    gateway or of runners. With `layouts`, half of them have a replica that refuses further tensor parallel sizes."""
    drawn = random.Random(f"{seed}/faults")
    targets = possible_targets(machines, replicas, workers, runners)
    faults: list[Fault] = []
    for _ in range(drawn.randint(1, most)):
        role = drawn.choice([role for role in Role if role not in _ROLES_APART])
        kinds = [kind for kind in APPLICABLE[role] if kind not in _DRAWN_APART]
        (kind,) = drawn.choices(kinds, [CRASH_WEIGHT if kind is FaultType.CRASH else 1 for kind in kinds])
        time = drawn.uniform(0, horizon)
        if faults and drawn.random() < BURST_SHARE:
            time = faults[-1].time + drawn.uniform(0, BURST_SECONDS)
        duration = 0.1 * (longest / 0.1) ** drawn.random()
        faults.append(Fault(round(time, 3), kind, drawn.choice(targets[role]), round(duration, 3)))
    leaves = random.Random(f"{seed}/leaves")
    if len(faults) < most and leaves.random() < LEAVE_SHARE:
        seconds = leaves.choice([1.0, GRACE_SECONDS])
        faults.append(_leave(leaves, leaves.choice(faults).time + leaves.uniform(-1, 1) * BURST_SECONDS, seconds))
    leases = random.Random(f"{seed}/office")
    if len(faults) < most and leases.random() < API_LOSS_SHARE:
        time, seconds = leases.uniform(0, horizon), longest * leases.random()
        faults.append(Fault(round(time, 3), FaultType.PARTITION, Role.COORDINATOR_API.value, round(seconds, 3)))
    damage = random.Random(f"{seed}/kv")
    if len(faults) < most and damage.random() < KV_DAMAGE_SHARE:
        time, seconds, machine = damage.uniform(0, horizon), longest * damage.random(), damage.randrange(machines)
        faults.append(Fault(round(time, 3), FaultType.KV_DAMAGED, f"rollout-{machine}", round(seconds, 3)))
    episodes = random.Random(f"{seed}/episode-faults")
    for _ in range(min(most - len(faults), episodes.randint(0, MOST_EPISODE_FAULTS)) if runners else 0):
        role = episodes.choice([Role.GATEWAY, Role.RUNNER])
        time, seconds = episodes.uniform(0, horizon), 0.1 * (longest / 0.1) ** episodes.random()
        target = episodes.choice(targets[role])
        faults.append(Fault(round(time, 3), episodes.choice(APPLICABLE[role]), target, round(seconds, 3)))
    refusals = random.Random(f"{seed}/layout-refused")
    if layouts and len(faults) < most and refusals.random() < REFUSAL_SHARE:
        time, seconds = refusals.uniform(0, horizon), longest * refusals.random()
        target = f"rollout-{refusals.randrange(machines)}/replica-{refusals.randrange(replicas)}"
        faults.append(Fault(round(time, 3), FaultType.LAYOUT_REFUSED, target, round(seconds, 3)))
    return FaultPlan(tuple(sorted(faults)))


def draw_leaves(seed: int, horizon: float) -> FaultPlan:
    """Draw one to four graceful deletions before `horizon` seconds.

    Half of them coincide with another one, as when both pods' node is drained."""
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


def possible_targets(machines: int, replicas: int, workers: bool = False, runners: int = 0) -> dict[Role, list[str]]:
    """Return all targets of a job of this size, with or without gradient workers, and with runners of environments."""
    names = [f"rollout-{index}" for index in range(machines)]
    beside = [f"{name}/worker" for name in names] if workers else []
    return {
        Role.REPLICA: [f"{name}/replica-{index}" for name in names for index in range(replicas)] + beside,
        Role.RELAY: [f"{name}/relay" for name in names],
        Role.TRAINER: ["trainer"],
        Role.REWARDS: ["rewards"],
        Role.MACHINE: [*names, "trainer-0"],
        Role.COORDINATOR: ["coordinator"],
        Role.COORDINATOR_API: ["coordinator/api"],
        Role.API: ["api"],
        Role.GATEWAY: ["gateway"] if runners else [],
        Role.RUNNER: [f"runner-{index}" for index in range(runners)],
    }


def shrink(plan: FaultPlan, fails: Callable[[FaultPlan], bool]) -> FaultPlan:
    """Return a smallest failing part of a failing plan.

    No single fault of it can be left out (delta debugging, Zeller and Hildebrandt 2002). `fails` is called at most once
    per plan."""
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
