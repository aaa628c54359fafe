"""Machines that do not come up: what belongs to their former incarnations is ended, and people hear why."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest
from ray import exceptions

from rljob_api.status import Member, Role, RuntimeStatus
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import PeerGone
from rljob_runtime.ray_backend.backend import _cause
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane
from tests.support.simulated_job import job, until

BUSY = "rollout-0.2/relay: its process has ended: SegmentBusy: another process writes this segment"


def member(incarnation: int, machine: str = "rollout-0") -> Member:
    return Member(machine=machine, incarnation=incarnation, ip="10.0.0.1", role=Role.ROLLOUT)


class Backend:
    """One segment a machine: who holds it keeps it until its actors are ended. What comes up stays at that."""

    def __init__(self, late: float = 0.0) -> None:
        self.held: dict[str, int] = {}
        self.up: list[int] = []
        self.late = late

    async def rollout_machine(self, term, member, files) -> NoReturn:
        # A requested peer is made even where no caller waits for it any more.
        making = asyncio.ensure_future(self._make(member))
        await asyncio.shield(making)
        self.up.append(member.incarnation)
        await asyncio.Event().wait()
        raise AssertionError

    async def _make(self, member) -> None:
        await asyncio.sleep(self.late)
        if self.held.setdefault(member.machine, member.incarnation) != member.incarnation:
            raise PeerGone(BUSY)

    async def release(self, member) -> None:
        if self.held.get(member.machine) == member.incarnation:
            del self.held[member.machine]


def fleet_of(backend: Backend) -> tuple[Fleet, Reporter]:
    settings = Settings.of(job())
    reporter = Reporter(SimulatedControlPlane(job(), 1), RuntimeStatus(), settings.back_off)
    fleet = Fleet(backend, 1, settings, reporter)  # type: ignore[arg-type]
    fleet.set_model_files({"config.json": b"{}"})
    return fleet, reporter


@pytest.mark.parametrize("gap", [False, True], ids=["replaced", "removed for a while"])
@pytest.mark.parametrize("late", [0.0, 3.0], ids=["up", "on its way"])
def test_a_machine_that_is_replaced_in_place_comes_back(gap, late):
    """Where no pod goes with it, its relay would hold the segment for ever."""
    backend = Backend(late)

    async def program():
        fleet, reporter = fleet_of(backend)
        fleet.set_members([member(1)], 1, ("rollout-0",))
        await until(lambda: backend.up == [1] or late)
        if gap:
            fleet.set_members([], 2, ())
        fleet.set_members([member(2)], 3, ("rollout-0",))
        await asyncio.wait_for(until(lambda: backend.up[-1:] == [2]), 60.0)
        assert reporter.draft.warnings == ()
        await fleet.aclose()

    virtual_time.run(program())
    assert backend.held == {"rollout-0": 2}


def test_why_a_machine_is_absent_is_reported_until_it_joins_or_is_dropped():
    backend = Backend()
    backend.held = {"rollout-0": 9, "rollout-1": 9}

    async def program():
        fleet, reporter = fleet_of(backend)
        fleet.set_members([member(2), member(1, "rollout-1")], 1, ("rollout-0", "rollout-1"))
        await asyncio.wait_for(until(lambda: reporter.draft.warnings), 60.0)
        await asyncio.sleep(5.0)
        (problem,) = reporter.draft.warnings
        assert problem.reason == "MachinesNotJoined"
        assert problem.message.startswith(f"rollout-0 does not join: {BUSY}; rollout-1 does not join: ")
        fleet.set_members([member(2)], 2, ("rollout-0",))
        assert "rollout-1" not in reporter.draft.warnings[0].message
        fleet.set_members([], 3, ())
        assert reporter.draft.warnings == ()
        await fleet.aclose()

    virtual_time.run(program())


INIT_FAILED = """The actor died because of an error raised in its creation task, ray::ActorHost.__init__() (pid=7)
  File "actors.py", line 80, in __init__
rljob_runtime.relay.segment.SegmentBusy: /dev/shm/rljob-a/rollout-0: another process writes this segment"""
KILLED = """The actor died unexpectedly before finishing this task.
\tclass_name: ActorHost
\tpid: 7
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file.
The actor never ran - it was cancelled before it started running."""


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        (
            INIT_FAILED,
            "rljob_runtime.relay.segment.SegmentBusy: /dev/shm/rljob-a/rollout-0: another process writes this segment",
        ),
        (KILLED, "Worker unexpectedly exits with a connection error code 2. End of file."),
        ("", ""),
        ("a" * 1000, "a" * 300),
    ],
)
def test_the_end_of_a_process_is_told_in_one_line(told, cause):
    assert _cause(exceptions.RayActorError(None, told)) == cause
