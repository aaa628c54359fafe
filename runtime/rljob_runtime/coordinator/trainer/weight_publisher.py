"""Weight publisher: publishes the weights after a step under a new version, to every replica that shall use them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rljob_runtime.coordinator.core.errors import Interrupted, TrainerLost
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.protocols import Chain, PeerError
from rljob_runtime.scheduling.weight_versions import may_start

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.1


class WeightPublisher:
    """Publications of one coordinator.

    `reported`: the highest version that an earlier coordinator reported, which the store may have lost; None if there
    was no earlier coordinator.
    """

    def __init__(
        self, store: StoreAccess, fleet: Fleet, trainer: TrainerClient, reporter: Reporter, reported: int | None
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._trainer = trainer
        self._reporter = reporter
        self._reported = reported
        self._waits_until = 0.0

    async def publish(self, step: int) -> int:
        """Load the weights after `step` into every replica; return their version.

        A version that was published earlier is used again, unless a relay may hold a newer one.
        """
        version = await self._version_of(step)
        await self._load_everywhere(version, step)
        return version

    async def start_publishing(self, step: int) -> int:
        """Publish the weights after `step` in the background; return their version.

        It returns when the trainer has copied the weights. Relays receive them during its next step, and replicas load
        them when they are idle.
        """
        version = await self._version_of(step)
        if self._trainer.published_version == self._fleet.weights.version == version:
            # Newcomers get it. After a suspension they would not, because the fleet has forgotten its version.
            return version
        copied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def push(version: int, chain: Chain) -> None:
            await self._trainer.publish(version, step, chain)
            if not copied.done():
                copied.set_result(None)

        async def broadcast() -> None:
            try:
                await self._fleet.weights.broadcast(version, push, force=True)
            except (PeerError, TrainerLost) as error:
                if copied.done():
                    log.warning("version %d does not reach every relay, the next one will: %s", version, error)
                else:
                    copied.set_exception(error)
            else:
                if not copied.done():
                    # No machine has joined; newcomers get the version.
                    copied.set_result(None)

        self._fleet.run_in_background(broadcast())
        await self._trainer.lose_if_refused(copied, f"version {version} was not published")
        self._reporter.update(weight_version=version)
        return version

    async def _version_of(self, step: int) -> int:
        used = await self._store.do(lambda store: store.versions.used())
        versions = used.with_observed(self._fleet.weights.newest_version)
        if self._reported is not None:
            versions = versions.with_reported(self._reported)
        version = versions.current(step)
        if version is None:
            version = number = versions.next_version()
            await self._store.do(lambda store: store.versions.publish(number, step))
        return version

    async def _load_everywhere(self, version: int, step: int) -> None:
        # A new trainer has to publish before it can feed newcomers and accept contributions of this version.
        force = self._trainer.published_version != version
        loading = self._fleet.weights.load_everywhere(
            version, lambda version, chain: self._trainer.publish(version, step, chain), force
        )
        await self._trainer.lose_if_refused(loading, f"version {version} was not published")
        self._reporter.update(weight_version=version)

    def extend_timeout(self, seconds: float) -> None:
        """Wait for missing machines for `seconds` from now on."""
        self._waits_until = asyncio.get_running_loop().time() + seconds

    async def wait_for_machines(self, version: int, step: int, interrupted: Callable[[], bool]) -> None:
        """Load these weights into all of the target's machines; after the timeout into those that have joined.

        Waits for at least one machine. Raises `Interrupted`, and `LayoutNotUsable` if no machine can start its engines.
        """
        clock = asyncio.get_running_loop().time
        while True:
            await self._load_everywhere(version, step)
            self._fleet.layouts.check_able(self._fleet.members)
            missing = len(set(self._fleet.members) - set(self._fleet.machines))
            if may_start(len(self._fleet.weights.replicas()), missing, clock() >= self._waits_until):
                return
            if interrupted():
                raise Interrupted
            await asyncio.sleep(CHECK_SECONDS)
