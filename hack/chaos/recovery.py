"""Recovery: a state machine over observations, from a fault to a healthy job.

The job has recovered at the first update after which every machine is ready, the chain is complete and no machine is
suspected. This must hold for some more updates. Only then do new tokens flow, and not only those in progress.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .observation import ROLES, Observation
from .rows import Row, machines_on

SETTLED = 2
"""Updates that must follow the first one, with all machines present, unless a campaign says otherwise."""


@dataclass
class Recovery:
    """One fault of `row` that hit `victims` at `at`. `before` is the last observation before it."""

    row: Row
    victims: tuple[str, ...]
    before: Observation
    at: float
    settled: int = SETTLED
    """Updates that must follow the first one."""
    detected: float | None = None
    """Seconds from the fault to its first sign in an object; the other times start at the fault too."""
    acted: float | None = None
    """Seconds to a new pod, or to the end of the problem if it is repaired in place."""
    back: float | None = None
    """Seconds to a healthy job; None until then."""
    wrong: list[str] = field(default_factory=list)
    """Violated expectations."""
    taken_back: float | None = None
    """Time at which a lasting fault was ended; there is no recovery before."""
    _whole: tuple[float, int] | None = None
    _first: float | None = None

    def __post_init__(self) -> None:
        self.machines: tuple[str, ...] = ()
        if self.row.watches == "victims":
            self.machines = self.victims
        elif self.row.watches == "nodes":
            self.machines = machines_on(self.before, self.victims)

    @property
    def done(self) -> bool:
        """True when the job has recovered, or never will."""
        return self.back is not None or bool(self.wrong)

    def observe(self, now: Observation) -> bool:
        """Process an observation; return whether no more are needed."""
        if now.at < self.at or self.done:
            return self.done
        since = now.at - self.at
        if self.detected is None and (self.row.seen(self.before, now) or any(map(now.troubled, self.machines))):
            self.detected = since
        if self.detected is not None and self.acted is None and self._acted(now):
            self.acted = since
        if now.failed:
            self.wrong.append(f"the job failed: {now.failed}")
        if self.row.replaced is False:
            self.wrong += [f"{name} was replaced" for name in self._replaced(now)]
        if self.row.quiet:
            self.wrong += [f"{name} was disturbed" for name in self._known() if now.troubled(name)]
        self._settle(now)
        return self.done

    def time_out(self) -> None:
        """Record that the bound has passed."""
        if self.done:
            return
        if self.detected is None and self.row.must_be_seen:
            self.wrong.append("not detected")
        self.wrong.append(f"not well within {self.row.bound:.0f} s")

    def _acted(self, now: Observation) -> bool:
        if self.row.busy(now):
            return False
        if self.machines:
            return all(self._new(name, now) or not now.troubled(name) for name in self.machines)
        return not self.row.seen(self.before, now)

    def _new(self, machine: str, now: Observation) -> bool:
        return now.incarnation(machine) > self.before.incarnation(machine)

    def _replaced(self, now: Observation) -> list[str]:
        return [name for name in self._known() if self._new(name, now)]

    def _known(self) -> list[str]:
        return [pod.machine for role in ROLES for pod in self.before.of_role(role)]

    def _well(self, now: Observation) -> bool:
        """Return whether the fault was detected and handled and the job is healthy."""
        if self.detected is None and self.row.must_be_seen:
            return False
        if self.row.lasts is not None and (self.taken_back is None or now.at < self.taken_back):
            return False
        if self.row.replaced and not all(self._new(name, now) for name in self.machines):
            return False
        if now.desired < self.before.desired:
            return False
        return now.healthy and not now.problems - self.before.problems

    def _settle(self, now: Observation) -> None:
        if not self._well(now):
            self._whole = self._first = None
            return
        if self._whole is None or now.round < self._whole[1]:
            self._whole, self._first = (now.at, now.round), None
        if self._first is None and now.round > self._whole[1]:
            self._first = now.at - self.at
        if now.round > self._whole[1] + self.settled:
            self.back = self._first
