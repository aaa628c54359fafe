"""Spec edits: changes by a user during the run, and the operator's reaction.

Pods are deleted when the operator's own policy permits it.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from rljob_api.status import TargetPhase
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.faults.injector import CoordinatorHost
from rljob_runtime.simulator.peers.cluster import SimulatedCluster
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane

LOOK_SECONDS = 1.0
"""Interval at which the operator checks leaving pods."""


@dataclass(frozen=True)
class Edit:
    """One edit, `time` seconds after the start.

    It changes the number of rounds or of rollout machines, or suspends the job for `suspended` seconds."""

    time: float
    rounds: int | None = None
    machines: int | None = None
    suspended: float | None = None

    @property
    def end(self) -> float:
        """Time at which the edit is complete."""
        return self.time + (self.suspended or 0.0)

    def __str__(self) -> str:
        if self.suspended is not None:
            return f"{self.time:g} s: suspended for {self.suspended:g} s"
        changed = f"{self.rounds} rounds" if self.rounds is not None else f"{self.machines} machines"
        return f"{self.time:g} s: {changed}"


def draw_edit(random_: random.Random, horizon: float, rounds: int, most_rounds: int, machines: int, most: int) -> Edit:
    """Draw an edit before `horizon` seconds, of a job of this many rounds and machines.

    It adds at most one round or machine, up to `most_rounds` and `most`; a job keeps at least one of each."""
    time = round(random_.uniform(0, horizon), 3)
    match random_.choice(["rounds", "machines", "suspended"]):
        case "rounds" if most_rounds > 1:
            others = [number for number in range(1, rounds + 2) if number != rounds and number <= most_rounds]
            return Edit(time, rounds=random_.choice(others))
        case "machines":
            others = [number for number in (machines - 1, machines + 1) if 1 <= number <= most]
            return Edit(time, machines=random_.choice(others))
        case _:
            return Edit(time, suspended=round(0.1 * 300 ** random_.random(), 3))


class SpecEditSchedule:
    """Applies an edit: the user writes the spec, the operator deletes and creates pods."""

    def __init__(self, control: SimulatedControlPlane, world: SimulatedCluster, host: CoordinatorHost) -> None:
        self._control = control
        self._world = world
        self._host = host

    def schedule(self, edit: Edit) -> None:
        """Schedule the edit from now on, second 0 of the job."""
        asyncio.get_running_loop().call_later(edit.time, self._begin, edit)

    def _begin(self, edit: Edit) -> None:
        if edit.rounds is not None:
            self._control.set_rounds(edit.rounds)
        if edit.machines is not None:
            self._control.scale(edit.machines)
            self._let_go()
        if edit.suspended is not None:
            self._control.set_phase(TargetPhase.SUSPEND)
            self._stop(loop_time() + edit.suspended)

    def _let_go(self) -> None:
        """Delete drained machines that the target no longer names."""
        for incarnation in self._control.dismiss():
            self._world.power_off(incarnation)
        if self._control.leaving:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._let_go)

    def _stop(self, until: float) -> None:
        """Delete all pods after the coordinator has saved everything.

        A suspension completes even if it is withdrawn."""
        if not self._control.may_suspend():
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._stop, until)
            return
        for incarnation in self._control.stop():
            self._world.power_off(incarnation)
        self._host.absent += 1
        self._host.crashes.set()
        asyncio.get_running_loop().call_at(max(until, loop_time()), self._resume)

    def _resume(self) -> None:
        self._control.resume()
        self._host.absent -= 1
        self._host.returned.fire()
