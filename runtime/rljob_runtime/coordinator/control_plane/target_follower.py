"""Target follower: applies new members immediately and the operator's target at the next boundary, and answers it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from rljob_api import RLJob
from rljob_api.status import Member, RelayTopology, Role, RoundKind, Target, TargetPhase
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.protocols import ControlPlane, PeerError
from rljob_runtime.scheduling.layouts.fleet_layout import RoundLayout

T = TypeVar("T")
log = logging.getLogger(__name__)

WATCH_SECONDS = 30.0
"""Longest pause between two reads of the job, in case the watch misses a change."""
CHECK_SECONDS = 1.0
"""Pause between two checks for a suspension: a trainer that dies meanwhile holds no updates any more."""


class TargetFollower:
    """The operator's part of the job, as last observed. `on_change` is called after each change."""

    def __init__(self, control: ControlPlane, fleet: Fleet, trainer: TrainerClient, reporter: Reporter) -> None:
        self._control = control
        self._fleet = fleet
        self._trainer = trainer
        self._reporter = reporter
        self._job: RLJob | None = None
        self._updated = asyncio.Event()
        self._stopped = False
        self._trainer_pods: tuple[tuple[str, int], ...] = ()
        self._trainer_pods_in_use: tuple[tuple[str, int], ...] | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.needs_trainer_state: Callable[[], bool] = lambda: False
        """Whether the trainer's state has to be known before a suspension."""

    # --- the target ---

    @property
    def target(self) -> Target:
        """The newest target; empty before the first."""
        status = self._job.status if self._job is not None else None
        return status.target if status is not None and status.target is not None else Target()

    @property
    def rounds(self) -> int:
        """The number of rounds in the spec, which may change at any time."""
        return self._job.spec.rounds if self._job is not None else 0

    @property
    def suspended(self) -> bool:
        """Whether the target suspends the job."""
        return self.target.phase is TargetPhase.SUSPEND

    @property
    def trainer_changed(self) -> bool:
        """Whether the trainer's pods have changed since it was started."""
        return self._trainer_pods_in_use is not None and self._trainer_pods != self._trainer_pods_in_use

    def record_trainer_pods(self) -> None:
        """Record that the trainer runs on the current pods."""
        self._trainer_pods_in_use = self._trainer_pods

    # --- following ---

    async def run(self) -> None:
        """Follow the job until cancelled."""
        while True:
            try:
                self._update(await self._job_now())
                await self._control.wait_changed(WATCH_SECONDS)
            except PeerError as error:
                log.warning("the job cannot be read, the last target stays in force: %s", error)
                await asyncio.sleep(1.0)

    async def _job_now(self) -> RLJob:
        return (await self._control.observe()).job

    def _update(self, job: RLJob) -> None:
        if job == self._job:
            return
        self._job = job
        members = job.status.members
        trainers = [member for member in members if member.role is Role.TRAINER and member.ip]
        self._trainer_pods = tuple(sorted((member.machine, member.incarnation) for member in trainers))
        self._trainer.set_members(trainers)
        # New members join immediately; members that the target does not name stay until the boundary.
        current = set(self._fleet.members)
        wanted = current if self.suspended else current | set(self.target.machines)
        self._fleet.layouts.set_members(self.target.machines)
        relay = job.status.relay or RelayTopology()
        self._fleet.set_members(
            [member for member in self._rollouts(job) if member.machine in wanted], relay.epoch, relay.chain
        )
        self._updated.set()
        self.on_change()

    @staticmethod
    def _rollouts(job: RLJob) -> list[Member]:
        return [member for member in job.status.members if member.role is Role.ROLLOUT and member.ip]

    async def wait_for_job(self) -> None:
        """Wait until the job was read once."""
        while self._job is None and not self._stopped:
            self._updated.clear()
            await self._updated.wait()

    def expect_rounds(self, kind: RoundKind, layout: RoundLayout | None) -> None:
        """Set the engine layout for machines that join before the next round, which is of this kind.

        `layout`: that of the open round, which goes on in it if it began at the target's size.
        """
        target, requested = _layout(self.target, kind)
        self._fleet.layouts.set_target(self._kept(layout, target) or target, requested)

    def _kept(self, layout: RoundLayout | None, target: RoundLayout) -> RoundLayout | None:
        return layout.kept(target.size, self._fleet.tensor_parallel_sizes) if layout is not None else None

    @property
    def leaving(self) -> frozenset[str]:
        """Members that the target does not name."""
        return frozenset(self._fleet.members) - frozenset(self.target.machines)

    async def apply_target(
        self, kind: RoundKind | None, keep: Collection[str] = (), layout: RoundLayout | None = None
    ) -> RoundLayout | None:
        """Apply the target at a boundary, and report it as applied.

        Machines that it does not name leave, except those to `keep`. The others switch to the layout of a round of this
        kind (None: there is no further round). `layout`: that of an open round. It is returned if the round goes on in
        it, because it began at the target's size.
        """
        target, kept = self.target, None
        gone = await self._fleet.remove(self.leaving - frozenset(keep))
        if kind is not None:
            wanted, requested = _layout(target, kind)
            kept = self._kept(layout, wanted)
            await self._fleet.weights.switch_layout(kept or wanted, requested)
        drained = tuple(
            sorted((set(self._reporter.draft.drained) & self._member_names() | set(gone)) - set(target.machines))
        )
        if target.revision != self._reporter.draft.applied or drained != self._reporter.draft.drained:
            self._reporter.event(**self._in_force(target), drained=drained)
        self._reporter.update(rounds=self.rounds)
        return kept

    def _in_force(self, target: Target) -> dict[str, int | None]:
        """Return the status fields of an applied target. Its round stays the one at which it was applied first."""
        draft = self._reporter.draft
        since = draft.applied_round if draft.applied == target.revision else draft.round
        return {"applied": target.revision, "applied_round": since}

    def _member_names(self) -> set[str]:
        return {member.machine for member in self._job.status.members} if self._job is not None else set()

    # --- suspension ---

    async def stay_suspended(self) -> None:
        """Remove all machines, report the suspension, and wait until the target runs the job (or `stop`)."""
        while self.suspended and not self._stopped:
            self._updated.clear()
            await self._fleet.remove(self._fleet.members)
            self._fleet.weights.forget()
            names = tuple(sorted(name for name in self._member_names() if name.startswith("rollout-")))
            draft = self._reporter.draft
            if (draft.stage, draft.applied, draft.drained) != ("Suspended", self.target.revision, names):
                self._reporter.event(stage="Suspended", **self._in_force(self.target), drained=names, progress=None)
            await self._updated.wait()
        if not self.suspended and self._job is not None:
            job, self._job = self._job, None
            self._update(job)

    async def unless_suspended(self, work: Awaitable[T]) -> T | None:
        """Return the result of `work`, or None if the job is suspended or stopped first.

        A suspension waits for `work` while the trainer's state has to be known.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done() and not (self.suspended and not self.needs_trainer_state()) and not self._stopped:
                self._updated.clear()
                updated = asyncio.create_task(self._updated.wait())
                try:
                    await asyncio.wait({task, updated}, timeout=CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    updated.cancel()
            return task.result() if task.done() else None
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    def stop(self) -> None:
        """End all waits: the coordinator stops."""
        self._stopped = True
        self._updated.set()


def _layout(target: Target, kind: RoundKind) -> tuple[RoundLayout, frozenset[int]]:
    """Return the layout at the start of rounds of this kind, and all sizes of the target."""
    sizes = target.tensor_parallel
    size = sizes.short if kind is RoundKind.SHORT else sizes.long
    return RoundLayout(size), frozenset({sizes.short, sizes.long})
