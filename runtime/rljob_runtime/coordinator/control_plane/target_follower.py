"""Follows the operator: who is a member now (at once), what the target asks (at the next boundary), and answers it."""

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

T = TypeVar("T")
log = logging.getLogger(__name__)

WATCH_SECONDS = 30.0
"""A look at the job at least this often, whatever the watch says."""
LOOK_SECONDS = 1.0
"""How often what is awaited is weighed against a suspension: a trainer that dies meanwhile holds nothing any more."""


class TargetFollower:
    """The operator's side of the job, as last seen. `on_change` is called after each look that brought something
    new."""

    def __init__(self, control: ControlPlane, fleet: Fleet, trainer: TrainerClient, reporter: Reporter) -> None:
        self._control = control
        self._fleet = fleet
        self._trainer = trainer
        self._reporter = reporter
        self._job: RLJob | None = None
        self._seen = asyncio.Event()
        self._stopped = False
        self._trainer_pods: tuple[tuple[str, int], ...] = ()
        self._trainer_pods_in_use: tuple[tuple[str, int], ...] | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.first_look: Callable[[], bool] = lambda: False
        """Whether it is to be found out first what the trainer holds, also where the job is to be suspended."""

    # --- what is asked ---

    @property
    def target(self) -> Target:
        """The newest target; an empty one before the first."""
        status = self._job.status if self._job is not None else None
        return status.target if status is not None and status.target is not None else Target()

    @property
    def rounds(self) -> int:
        """How many rounds the job is to have: the spec may raise or lower it at any time."""
        return self._job.spec.rounds if self._job is not None else 0

    @property
    def suspended(self) -> bool:
        """Whether the operator asks the job to stop at its state."""
        return self.target.phase is TargetPhase.SUSPEND

    @property
    def trainer_changed(self) -> bool:
        """Whether the trainer's pods are others than those that it was started on."""
        return self._trainer_pods_in_use is not None and self._trainer_pods != self._trainer_pods_in_use

    def trainer_ready(self) -> None:
        """The trainer runs on the pods that are members now."""
        self._trainer_pods_in_use = self._trainer_pods

    # --- following ---

    async def run(self) -> None:
        """Look whenever the job changes, until cancelled."""
        while True:
            try:
                self._look(await self._job_now())
                await self._control.wait_changed(WATCH_SECONDS)
            except PeerError as error:
                log.warning("the job cannot be read, the last target stays in force: %s", error)
                await asyncio.sleep(1.0)

    async def _job_now(self) -> RLJob:
        return (await self._control.observe()).job

    def _look(self, job: RLJob) -> None:
        if job == self._job:
            return
        self._job = job
        members = job.status.members
        trainers = [member for member in members if member.role is Role.TRAINER and member.ip]
        self._trainer_pods = tuple(sorted((member.machine, member.incarnation) for member in trainers))
        self._trainer.set_members(trainers)
        # Members come and change at once; who leaves by the target stays until the boundary.
        kept = set(self._fleet.members)
        wanted = kept if self.suspended else kept | set(self.target.machines)
        self._fleet.layouts.set_members(self.target.machines)
        relay = job.status.relay or RelayTopology()
        self._fleet.set_members(
            [member for member in self._rollouts(job) if member.machine in wanted], relay.epoch, relay.chain
        )
        self._seen.set()
        self.on_change()

    @staticmethod
    def _rollouts(job: RLJob) -> list[Member]:
        return [member for member in job.status.members if member.role is Role.ROLLOUT and member.ip]

    async def first(self) -> None:
        """Wait until the job was seen once."""
        while self._job is None and not self._stopped:
            self._seen.clear()
            await self._seen.wait()

    def expect(self, kind: RoundKind) -> None:
        """Rounds of this kind come next: who sits down from now on is laid out for them."""
        self._fleet.layouts.set_target(*_layout(self.target, kind))

    @property
    def leaving(self) -> frozenset[str]:
        """Machines that are here and that the target does not name."""
        return frozenset(self._fleet.members) - frozenset(self.target.machines)

    async def apply_target(self, kind: RoundKind | None, keep: Collection[str] = ()) -> None:
        """At a boundary: machines that the target no longer names are let go, but for those to `keep` still; the others
        are laid out for a round of this kind (None: there is no further one), and the operator is told."""
        target = self.target
        gone = await self._fleet.remove(self.leaving - frozenset(keep))
        if kind is not None:
            await self._fleet.weights.switch_layout(*_layout(target, kind))
        drained = tuple(
            sorted((set(self._reporter.draft.drained) & self._member_names() | set(gone)) - set(target.machines))
        )
        if target.revision != self._reporter.draft.applied or drained != self._reporter.draft.drained:
            self._reporter.event(**self._in_force(target), drained=drained)
        self._reporter.update(rounds=self.rounds)

    def _in_force(self, target: Target) -> dict[str, int | None]:
        """What is reported of a target that is followed from now on, or has been."""
        draft = self._reporter.draft
        since = draft.applied_round if draft.applied == target.revision else draft.round
        return {"applied": target.revision, "applied_round": since}

    def _member_names(self) -> set[str]:
        return {member.machine for member in self._job.status.members} if self._job is not None else set()

    # --- suspension ---

    async def stay_suspended(self) -> None:
        """Everything is handed over: say so, and wait until the operator wants the job to run (or `stop`)."""
        while self.suspended and not self._stopped:
            self._seen.clear()
            await self._fleet.remove(self._fleet.members)
            self._fleet.weights.forget()
            names = tuple(sorted(name for name in self._member_names() if name.startswith("rollout-")))
            draft = self._reporter.draft
            if (draft.stage, draft.applied, draft.drained) != ("Suspended", self.target.revision, names):
                self._reporter.event(stage="Suspended", **self._in_force(self.target), drained=names, progress=None)
            await self._seen.wait()
        if not self.suspended and self._job is not None:
            job, self._job = self._job, None
            self._look(job)

    async def unless_suspended(self, work: Awaitable[T]) -> T | None:
        """The result of `work`, or None when the job was suspended or stopped before it came. What has to be known
        before a suspension is waited for all the same."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done() and not (self.suspended and not self.first_look()) and not self._stopped:
                self._seen.clear()
                seen = asyncio.create_task(self._seen.wait())
                try:
                    await asyncio.wait({task, seen}, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    seen.cancel()
            return task.result() if task.done() else None
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    def stop(self) -> None:
        """The coordinator is asked to go: nobody waits any longer."""
        self._stopped = True
        self._seen.set()


def _layout(target: Target, kind: RoundKind) -> tuple[int, frozenset[int]]:
    """The tensor parallel size in rounds of this kind, and all that the target asks for."""
    sizes = target.tensor_parallel
    return sizes.short if kind is RoundKind.SHORT else sizes.long, frozenset({sizes.short, sizes.long})
