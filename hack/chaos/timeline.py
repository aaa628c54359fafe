"""The loss of machines with their node, moment by moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from .observation import Observation

MOMENTS = {
    "closed": "the chain is closed",
    "suspected": "the machine is a suspect",
    "created": "the replacement's pod is created",
    "joined": "it is ready and in the chain",
    "generating": "it generates again",
}


@dataclass
class Timeline:
    """When what was first seen of the loss of `machines`, in seconds after `at`. `before`: the last look before."""

    at: float
    machines: tuple[str, ...]
    before: Observation
    moments: dict[str, float] = field(default_factory=dict)

    def see(self, now: Observation) -> bool:
        """Take a look; whether all has been seen."""
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

    def table(self) -> str:
        """A line for each moment."""
        width = max(map(len, MOMENTS.values()))
        lines = [f"{', '.join(self.machines)}: seconds after the power was cut"]
        for moment, told in MOMENTS.items():
            seconds = self.moments.get(moment)
            lines.append(f"  {told:<{width}}  " + ("never" if seconds is None else f"{seconds:6.1f}"))
        return "\n".join(lines)
