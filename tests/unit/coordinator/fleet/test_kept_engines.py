"""Kept engines: which sizes a machine has engines of, and whether a layout was built or woken."""

from __future__ import annotations

import pytest

from rljob_api.status import Member, Role, RuntimeStatus
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.layouts import Layouts
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import KeptEngines, MachinePeers
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane
from tests.support.simulated_job import job


class Slot:
    """A replica that keeps so many engines at most, and discards the one that it has had longest."""

    def __init__(self, name: str, room: int) -> None:
        self.name, self._room, self._built = name, room, 0
        self._sizes: list[int] = []

    async def release_accelerators(self, term: int, tensor_parallel: int) -> KeptEngines:
        return KeptEngines(frozenset(self._sizes), self._built)

    async def switch_layout(self, term: int, tensor_parallel: int) -> KeptEngines:
        if tensor_parallel not in self._sizes:
            self._built += 1
            self._sizes = [*self._sizes, tensor_parallel][-self._room :]
        return await self.release_accelerators(term, tensor_parallel)


def layouts_of(*rooms: int) -> tuple[Layouts, MachinePeers]:
    """A machine of one accelerator for each of these slots, and the layouts of a coordinator that has just begun."""
    reporter = Reporter(SimulatedControlPlane(job(), 1), RuntimeStatus(), Settings.of(job()).back_off)
    member = Member(machine="rollout-0", incarnation=1, ip="10.0.0.1", role=Role.ROLLOUT)
    slots = tuple(Slot(f"rollout-0/replica-{number}", room) for number, room in enumerate(rooms))
    return Layouts(1, 1, reporter, 30.0), MachinePeers(member, None, slots)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rooms", "parts", "built"),
    [
        pytest.param((3, 3), ["build", "build", "start", "start"], {1, 2}, id="all are kept"),
        pytest.param((1, 1), ["build", "build", "build", "build"], {2}, id="each slot keeps one"),
        pytest.param((3, 1), ["build", "build", "start", "start"], {1, 2}, id="this slot leads in one size"),
        pytest.param((1, 3), ["build", "build", "build", "build"], {2}, id="one of two slots discards"),
    ],
)
async def test_a_size_counts_as_built_while_every_leading_slot_keeps_it(
    rooms: tuple[int, ...], parts: list[str], built: set[int]
) -> None:
    layouts, machine = layouts_of(*rooms)
    found: list[str] = []
    for size in (1, 2, 1, 2):
        layouts.visit("rollout-0", size)
        await layouts.apply(machine)
        found += layouts.drain_parts("rollout-0").keys() & {"build", "start"}
    assert found == parts
    assert (layouts.built("rollout-0"), layouts.ran("rollout-0")) == (built, {1, 2})
    layouts.processes_ended("rollout-0")
    assert (layouts.built("rollout-0"), layouts.ran("rollout-0")) == (frozenset(), frozenset())


async def test_a_new_coordinator_learns_which_engines_are_kept() -> None:
    before, machine = layouts_of(3, 3)
    for size in (1, 2):
        before.visit("rollout-0", size)
        await before.apply(machine)
    now, _ = layouts_of(3, 3)
    await now.apply(machine)
    assert "start" in now.drain_parts("rollout-0")
    assert (now.built("rollout-0"), now.build_seconds) == ({1, 2}, None)
