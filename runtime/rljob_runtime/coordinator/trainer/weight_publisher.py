"""WeightPublisher: the weights after a step, under a version of their own, in every replica that is to use them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rljob_runtime.coordinator.core.errors import Interrupted, TrainerLost
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.protocols import Chain, PeerError

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1


class WeightPublisher:
    """`reported`: the highest version that a former coordinator told of, which the store may have lost; None where
    there was no such coordinator."""

    def __init__(
        self, store: StoreAccess, fleet: Fleet, trainer: TrainerClient, reporter: Reporter, reported: int | None
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._trainer = trainer
        self._reporter = reporter
        self._reported = reported
        self._patience_ends = 0.0

    async def publish(self, step: int) -> int:
        """The weights after `step` are in every replica; under the version they had if they were published before and
        no relay can hold a newer one."""
        version = await self._number(step)
        await self._bring(version, step)
        return version

    async def ship(self, step: int) -> int:
        """As `publish`, but the trainer has only copied them when this returns: relays get them behind its next step,
        and replicas take them when they have nothing to do."""
        version = await self._number(step)
        if self._trainer.published == self._fleet.version == version:
            # Who sits down is fed. After a suspension nobody is: the fleet has forgotten its weights.
            return version
        shipped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def ship(version: int, chain: Chain) -> None:
            await self._trainer.ship(version, step, chain)
            if not shipped.done():
                shipped.set_result(None)

        async def deliver() -> None:
            try:
                await self._fleet.deliver(version, ship, anew=True)
            except (PeerError, TrainerLost) as error:
                if shipped.done():
                    log.warning("version %d does not go to every relay, the next one will: %s", version, error)
                else:
                    shipped.set_exception(error)
            else:
                if not shipped.done():
                    # Nobody is there; who comes is fed.
                    shipped.set_result(None)

        self._fleet.aside(deliver())
        await self._trainer.unless_refused(shipped, f"version {version} was not published")
        self._reporter.update(weight_version=version)
        return version

    async def _number(self, step: int) -> int:
        versions = (await self._store.do(Store.versions)).with_observed(self._fleet.newest_seen)
        if self._reported is not None:
            versions = versions.with_reported(self._reported)
        version = versions.current(step)
        if version is None:
            version = number = versions.next_version()
            await self._store.do(lambda store: store.publish(number, step))
        return version

    async def _bring(self, version: int, step: int) -> None:
        # A trainer that was started anew holds what it publishes: it feeds newcomers, and knows whose sums fit.
        anew = self._trainer.published != version
        bringing = self._fleet.bring(version, lambda version, chain: self._trainer.ship(version, step, chain), anew)
        await self._trainer.unless_refused(bringing, f"version {version} was not published")
        self._reporter.update(weight_version=version)

    def be_patient(self, seconds: float) -> None:
        """From now on for so long the last of the machines are waited for."""
        self._patience_ends = asyncio.get_running_loop().time() + seconds

    async def wait_for_machines(self, version: int, step: int, interrupted: Callable[[], bool]) -> None:
        """All of the target's machines with these weights, or after a while those that are there; at least one.
        Raises `Interrupted` when it was before, and `LayoutNotUsable` when none of them can start its engines."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._bring(version, step)
            self._fleet.layouts.check_able(self._fleet.kept)
            present = len(self._fleet.replicas())
            if present and (set(self._fleet.machines) >= set(self._fleet.kept) or clock() >= self._patience_ends):
                return
            if interrupted():
                raise Interrupted
            await asyncio.sleep(LOOK_SECONDS)
