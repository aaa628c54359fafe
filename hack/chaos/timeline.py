"""Timeline: the loss of machines with their node, moment by moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .observation import Observation

MOMENTS = {
    "closed": "the chain is closed",
    "suspected": "the machine is a suspect",
    "created": "the replacement's pod is created",
    "joined": "it is ready and in the chain",
    "generating": "it generates again",
}
GOAL = 1.5
"""Starts of a machine that may pass until the lost one generates again."""


@dataclass
class Starts:
    """First start of each rollout machine, in seconds from its pod until it is ready and in the chain.

    The machine joins Ray, and its engine starts cold. All machines start at the same time, after Ray's head.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    _created: dict[tuple[str, int], float] = field(default_factory=dict)

    def observe(self, now: Observation) -> None:
        """Process an observation."""
        for pod in now.of_role("rollout"):
            created = self._created.setdefault((pod.machine, pod.incarnation), now.at)
            if pod.machine not in self.seconds and not now.troubled(pod.machine):
                self.seconds[pod.machine] = now.at - created


def own_start(moments: Mapping[str, float]) -> float | None:
    """Return the seconds of the replacement's own start, which no other start overlaps; None if it did not finish."""
    if not {"created", "joined"} <= moments.keys():
        return None
    return moments["joined"] - moments["created"]


def in_starts(moments: Mapping[str, float], start: float | None) -> float | None:
    """Return after how many such starts the machine generated again; None if it did not, or there was no start."""
    generating = moments.get("generating")
    return None if generating is None or not start else generating / start


@dataclass
class Timeline:
    """Moments of the loss of `machines`, in seconds after `at`. `before`: the last observation before the loss."""

    at: float
    machines: tuple[str, ...]
    before: Observation
    moments: dict[str, float] = field(default_factory=dict)

    def observe(self, now: Observation) -> bool:
        """Process an observation; return whether all moments are known."""
        if now.at < self.at:
            return False
        if not set(self.machines) & set(now.chain):
            self._note("closed", now)
        if set(self.machines) <= {name for name, _ in now.suspects}:
            self._note("suspected", now)
        if all(self._replaced(name, now) for name in self.machines):
            self._note("created", now)
            self._follow(now)
        return MOMENTS.keys() == self.moments.keys()

    def _follow(self, now: Observation) -> None:
        if any(map(now.troubled, self.machines)):
            return
        self._note("joined", now)
        if set(self.machines) <= set(now.generating):
            self._note("generating", now)

    def _replaced(self, machine: str, now: Observation) -> bool:
        return now.incarnation(machine) > self.before.incarnation(machine)

    def _note(self, moment: str, now: Observation) -> None:
        self.moments.setdefault(moment, now.at - self.at)

    def table(self, starts: Starts) -> str:
        """Draw a line for each moment, and the last one in units of a start: the replacement's own, and the first."""
        width = max(map(len, MOMENTS.values()))
        lines = [f"{', '.join(self.machines)}: seconds after the power was cut"]
        for moment, label in MOMENTS.items():
            seconds = self.moments.get(moment)
            lines.append(f"  {label:<{width}}  " + ("never" if seconds is None else f"{seconds:6.1f}"))
        first = max((starts.seconds[name] for name in self.machines if name in starts.seconds), default=None)
        for label, start in (("the replacement's start", own_start(self.moments)), ("the first start", first)):
            if start is not None:
                ratio = in_starts(self.moments, start)
                after = "it never generated" if ratio is None else f"it generated after {ratio:.2f} of it"
                lines.append(f"  {label}, from pod to chain: {start:.1f} s; {after} (goal: at most {GOAL})")
        return "\n".join(lines)
