"""Trainer client: finds or makes the trainer group, and calls it.

The trainer counts as lost as soon as its pods change or a call fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from rljob_api.status import Member
from rljob_runtime.coordinator.core.errors import FunctionNotUsable, ModelNotUsable, TrainerLost
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.reporting.timeline import TRAINER, Timeline
from rljob_runtime.protocols import (
    Backend,
    Chain,
    FunctionFailed,
    PeerError,
    PeerGone,
    PeerTimeout,
    Refused,
    StaleTerm,
    Trainer,
    TrainerState,
)

T = TypeVar("T")
log = logging.getLogger(__name__)


class TrainerClient:
    """The client of the one trainer group. `call` raises `TrainerLost` as soon as its pods change."""

    def __init__(self, backend: Backend, term: int, settings: Settings, reporter: Reporter) -> None:
        self._backend = backend
        self._term = term
        self._settings = settings
        self._reporter = reporter
        self._members: tuple[Member, ...] = ()
        self._changed = asyncio.Event()
        self._trainer: Trainer | None = None
        self._made_on: tuple[Member, ...] = ()
        self._releasing: asyncio.Task[None] | None = None
        """Ends the actors of a lost trainer. This may take as long as the Lease lasts."""
        self._allowed_to_leave: tuple[tuple[str, int], ...] = ()
        """Pods that may leave: no trainer starts on them."""
        self.published_version: int | None = None
        """The last version that this trainer published; None before the first."""
        self.may_hold_updates = False
        """Whether it may hold updates that no checkpoint contains, though its step is still unknown."""

    @property
    def timeline(self) -> Timeline:
        """Where intervals are recorded."""
        return self._reporter.timeline

    @property
    def available(self) -> bool:
        """Whether it was started and has not been lost."""
        return self._trainer is not None

    @property
    def leaving(self) -> bool:
        """Whether one of its pods was asked to leave, and waits for `allow_to_leave`."""
        return self.available and any(member.leaving for member in self._members)

    def set_members(self, members: Sequence[Member]) -> None:
        """Set the trainer's pods."""
        members = tuple(sorted(members, key=lambda member: member.machine))
        before, self._members = self._members, members
        if _identity(members) != _identity(before):
            self._changed.set()
            self.may_hold_updates = False

    async def find_existing(self) -> None:
        """Find out whether the trainer of an earlier coordinator lives on the pods. If that is unknown, assume so."""
        if self._trainer is not None or not self._complete:
            return
        await self._released()
        try:
            self.may_hold_updates = await self._backend.has_trainer(self._members)
        except PeerError as error:
            log.warning("it is unknown whether a trainer exists: %s", error)
            self.may_hold_updates = True

    async def start(self) -> TrainerState:
        """Wait for all pods, find or make the group, and have it load.

        Raises `ModelNotUsable` or `FunctionNotUsable` if it refuses.
        """
        failures = 0
        while True:
            if self._changed.is_set():
                await self.mark_lost("its pods changed")
            if self._trainer is None:
                self._changed.clear()
            if not self._complete:
                await self._changed.wait()
                continue
            try:
                self._trainer = self._trainer or await self._make()
                with self._reporter.timeline.during(TRAINER, "start"):
                    return await self.call(lambda trainer: trainer.start(self._term))
            except StaleTerm:
                raise
            except FunctionFailed as error:
                raise FunctionNotUsable(str(error)) from error
            except Refused as error:
                raise ModelNotUsable(str(error)) from error
            except (TrainerLost, PeerError) as error:
                if self._changed.is_set():
                    log.info("the trainer's pods changed while it started")
                    continue
                failures += 1
                log.warning("the trainer is not available (try %d): %s", failures, error)
                await asyncio.sleep(self._settings.back_off.delay(failures) or self._settings.back_off.maximum)

    @property
    def _complete(self) -> bool:
        """Whether all of its pods have joined, and none of them may leave."""
        return (
            len(self._members) >= self._settings.trainer_replicas and _identity(self._members) != self._allowed_to_leave
        )

    async def call(self, method: Callable[[Trainer], Coroutine[Any, Any, T]]) -> T:
        """Call the trainer. Raises `TrainerLost` if the call fails or its pods change, and `Refused` if it refuses."""
        trainer = self._trainer
        if trainer is None:
            raise TrainerLost("the trainer was lost")
        try:
            return await self._unless_changed(lambda: method(trainer))
        except (TrainerLost, PeerGone, PeerTimeout) as error:
            await self._mark_lost(trainer, error)
            raise TrainerLost(str(error)) from error

    async def _make(self) -> Trainer:
        """Find or make the group on the current pods.

        One of the pods may have died unnoticed. An actor for it never starts, and the next group must not wait for it.
        """
        await self._released()
        self._made_on = members = self._members
        try:
            if not await self._unless_changed(lambda: self._backend.has_trainer(members)):
                # New ranks cannot join the ranks of an incomplete group.
                await self._release()
            return await self._unless_changed(lambda: self._backend.trainer(self._term, members))
        except TrainerLost:
            await self._release()
            raise

    async def _unless_changed(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `work`. Raises `TrainerLost` as soon as the trainer's pods change."""
        if self._changed.is_set():
            raise TrainerLost("the trainer's pods changed")
        working = asyncio.create_task(work())
        watch = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({working, watch}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise TrainerLost("the trainer's pods changed")
        finally:
            for task in (working, watch):
                task.cancel()
            await asyncio.gather(working, watch, return_exceptions=True)

    async def lose_if_refused(self, work: Awaitable[T], what: str) -> T:
        """Return the result of `work`, which calls the trainer. Raises `TrainerLost` with `what` if it refuses.

        It would refuse again, so it is marked lost, and a new trainer starts at the checkpoint.
        """
        try:
            return await work
        except StaleTerm:
            raise
        except Refused as error:
            await self.mark_lost(error)
            if isinstance(error, FunctionFailed):
                raise FunctionNotUsable(str(error)) from error
            raise TrainerLost(f"{what}: {error}") from error

    async def publish(self, version: int, step: int, chain: Chain) -> None:
        """Have the trainer publish the weights after `step` to this chain (see `broadcast.PushWeights`)."""
        trainer = self._trainer
        with self._reporter.timeline.during(TRAINER, "publish", version=version):
            await self.call(lambda trainer: trainer.publish(self._term, version, step, chain))
        if trainer is self._trainer:
            self.published_version = version

    async def allow_to_leave(self) -> None:
        """Let its pods leave, because all that it holds is saved. The next `start` waits for other pods."""
        self._allowed_to_leave = _identity(self._made_on)
        await self.mark_lost("its pods were asked to leave")

    async def mark_lost(self, reason: object) -> None:
        """Mark the trainer as lost, whatever it does. The next `start` makes another one."""
        if self._trainer is not None:
            await self._mark_lost(self._trainer, reason)

    async def _mark_lost(self, trainer: Trainer, reason: object) -> None:
        """Mark this trainer as lost, once: a call that fails late must not end its successor."""
        if trainer is not self._trainer:
            return
        log.warning("trainer lost: %s", reason)
        self._reporter.timeline.event("TrainerLost", str(reason), TRAINER)
        self._trainer, self.published_version, self.may_hold_updates = None, None, False
        self._reporter.event(stage="Starting")
        await self._release()

    async def _release(self) -> None:
        """End the trainer's actors, also if the caller is cancelled, before another trainer is made."""
        members = self._made_on

        async def release() -> None:
            await asyncio.gather(*(self._backend.release(member) for member in members))

        assert self._releasing is None or self._releasing.done(), "no trainer is made before the last one has ended"
        self._releasing = asyncio.create_task(release(), name="release-trainer")
        await self._released()

    async def _released(self) -> None:
        if self._releasing is not None:
            await asyncio.shield(self._releasing)

    async def aclose(self) -> None:
        """Stop ending actors; they live on for the next coordinator."""
        if self._releasing is not None:
            self._releasing.cancel()
            await asyncio.gather(self._releasing, return_exceptions=True)


def _identity(members: Sequence[Member]) -> tuple[tuple[str, int], ...]:
    return tuple((member.machine, member.incarnation) for member in members)
