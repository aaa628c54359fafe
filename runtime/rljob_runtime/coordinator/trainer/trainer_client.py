"""The trainer as the coordinator holds it: found or made, and lost as soon as its pods change or it fails a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from rljob_api.status import Member
from rljob_runtime.coordinator.core.errors import ModelNotUsable, TrainerLost
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import (
    Backend,
    Chain,
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
    """The one trainer group. Calls go through `call`, which ends with `TrainerLost` when its pods change under it."""

    def __init__(self, binding: Backend, term: int, settings: Settings, reporter: Reporter) -> None:
        self._binding = binding
        self._term = term
        self._settings = settings
        self._reporter = reporter
        self._members: tuple[Member, ...] = ()
        self._changed = asyncio.Event()
        self._trainer: Trainer | None = None
        self._made_on: tuple[Member, ...] = ()
        self._releasing: asyncio.Task[None] | None = None
        """Ends the actors of a trainer that was lost, which may take as long as the Lease lasts."""
        self._let_go: tuple[tuple[str, int], ...] = ()
        """Pods that may leave: nothing is started there any more."""
        self.published: int | None = None
        """The version that this trainer published last; None before it has published any."""
        self.holds = False
        """It may hold updates that no checkpoint has, though it has not said yet at which step it stands."""

    @property
    def there(self) -> bool:
        """Whether it was not seen to be lost since it was started."""
        return self._trainer is not None

    @property
    def leaving(self) -> bool:
        """Whether it runs on a pod that was asked to go, which waits for `let_go`."""
        return self.there and any(member.leaving for member in self._members)

    def follow(self, members: Sequence[Member]) -> None:
        """These are the trainer's pods now."""
        members = tuple(sorted(members, key=lambda member: member.machine))
        before, self._members = self._members, members
        if _identity(members) != _identity(before):
            self._changed.set()
            self.holds = False

    async def find(self) -> None:
        """Learn whether a former coordinator's trainer lives on its pods. Where nobody can say, it may."""
        if self._trainer is not None or not self._complete:
            return
        await self._released()
        try:
            self.holds = await self._binding.has_trainer(self._members)
        except PeerError as error:
            log.warning("whether there is a trainer is not known: %s", error)
            self.holds = True

    async def start(self) -> TrainerState:
        """Wait for all pods, find or make the group, and have it load. Raises `ModelNotUsable` when it refuses."""
        failures = 0
        while True:
            if self._changed.is_set():
                await self.lose("its pods changed")
            if self._trainer is None:
                self._changed.clear()
            if not self._complete:
                await self._changed.wait()
                continue
            try:
                self._trainer = self._trainer or await self._make()
                return await self.call(lambda trainer: trainer.start(self._term))
            except StaleTerm:
                raise
            except Refused as error:
                raise ModelNotUsable(str(error)) from error
            except (TrainerLost, PeerError) as error:
                if self._changed.is_set():
                    log.info("the trainer's pods changed while it started")
                    continue
                failures += 1
                log.warning("trainer not there (try %d): %s", failures, error)
                await asyncio.sleep(self._settings.back_off.delay(failures) or self._settings.back_off.maximum)

    @property
    def _complete(self) -> bool:
        """Whether all of its pods are there, and may stay."""
        return len(self._members) >= self._settings.trainer_replicas and _identity(self._members) != self._let_go

    async def call(self, method: Callable[[Trainer], Coroutine[Any, Any, T]]) -> T:
        """One call, at most until the trainer's pods change. Raises `TrainerLost`, or `Refused` if it says no."""
        trainer = self._trainer
        if trainer is None:
            raise TrainerLost("the trainer was lost")
        try:
            return await self._unless_changed(lambda: method(trainer))
        except (TrainerLost, PeerGone, PeerTimeout) as error:
            await self._lose(trainer, error)
            raise TrainerLost(str(error)) from error

    async def _make(self) -> Trainer:
        """The group on the pods as they are now. One of them may have died unnoticed: what is made there comes up
        never, and its successor must not wait for that."""
        await self._released()
        self._made_on = members = self._members
        try:
            if not await self._unless_changed(lambda: self._binding.has_trainer(members)):
                # Ranks of a group that is not whole know each other: none that is made anew can join them.
                await self._release()
            return await self._unless_changed(lambda: self._binding.trainer(self._term, members))
        except TrainerLost:
            await self._release()
            raise

    async def _unless_changed(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, at most until the trainer's pods change. Raises `TrainerLost` then."""
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

    async def unless_refused(self, work: Awaitable[T], what: str) -> T:
        """The result of `work`, which is a call or has one in it. A refusal loses the trainer: asked again, it would
        refuse again, and another one begins at the checkpoint. Raises `TrainerLost`, which says `what`."""
        try:
            return await work
        except StaleTerm:
            raise
        except Refused as error:
            await self.lose(error)
            raise TrainerLost(f"{what}: {error}") from error

    async def ship(self, version: int, step: int, chain: Chain) -> None:
        """Have the trainer publish the weights after `step` to this chain (`Fleet.bring` asks for it)."""
        trainer = self._trainer
        await self.call(lambda trainer: trainer.publish(self._term, version, step, chain))
        if trainer is self._trainer:
            self.published = version

    async def let_go(self) -> None:
        """Its pods may leave: all that it holds is saved. The next `start` waits for other pods."""
        self._let_go = _identity(self._made_on)
        await self.lose("its pods were asked to go")

    async def lose(self, reason: object) -> None:
        """Let go of the trainer that is here, whatever it does: the next `start` makes another one."""
        if self._trainer is not None:
            await self._lose(self._trainer, reason)

    async def _lose(self, trainer: Trainer, reason: object) -> None:
        """Let go of it, once: a call that fails late must not end the one that was started since."""
        if trainer is not self._trainer:
            return
        log.warning("trainer lost: %s", reason)
        self._trainer, self.published, self.holds = None, None, False
        self._reporter.event(stage="Starting")
        await self._release()

    async def _release(self) -> None:
        """It is done though whoever waits for it is cancelled, and before another trainer is made."""
        members = self._made_on

        async def release() -> None:
            await asyncio.gather(*(self._binding.release(member) for member in members))

        assert self._releasing is None or self._releasing.done(), "nothing is made before it has ended"
        self._releasing = asyncio.create_task(release(), name="release-trainer")
        await self._released()

    async def _released(self) -> None:
        if self._releasing is not None:
            await asyncio.shield(self._releasing)

    async def aclose(self) -> None:
        """Nobody is ended from now on; the actors live on for the next coordinator."""
        if self._releasing is not None:
            self._releasing.cancel()
            await asyncio.gather(self._releasing, return_exceptions=True)


def _identity(members: Sequence[Member]) -> tuple[tuple[str, int], ...]:
    return tuple((member.machine, member.incarnation) for member in members)
