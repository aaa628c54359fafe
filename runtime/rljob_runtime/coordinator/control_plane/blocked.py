"""BlockedConditions: what keeps a job from going on and is no reason to end it."""

from __future__ import annotations

import asyncio
import logging

from rljob_api.constants import ENGINE_MISMATCH, HALTING
from rljob_api.status import StatusWarning
from rljob_runtime.coordinator.control_plane.target_follower import TargetFollower
from rljob_runtime.coordinator.core.errors import ExportRefused
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import RewardsUnavailable
from rljob_runtime.scheduling.backoff import Backoff

log = logging.getLogger(__name__)


class EngineMismatch(Exception):
    """Trainer and engine do not compute the same, and no other try will differ."""

    reason = ENGINE_MISMATCH


class BlockedConditions:
    """Of one coordinator. What halts the job is a problem in its status until `over`."""

    def __init__(self, reporter: Reporter, following: TargetFollower, back_off: Backoff) -> None:
        self._reporter = reporter
        self._following = following
        self._back_off = back_off
        self._tries = 0

    async def wait(self, error: RewardsUnavailable | ExportRefused) -> None:
        """Until it is worth another try: the machine may yet be given what it lacks, or the job be suspended and sent
        elsewhere."""
        self._tries += 1
        log.warning("%s (try %d): %s", error.reason, self._tries, error)
        told = f"{error}. It is tried again from time to time"
        self._tell(StatusWarning(reason=error.reason, message=told[:2048]))
        await self._following.unless_suspended(asyncio.sleep(self._back_off.delay(self._tries) or 0.0))

    async def for_good(self, error: EngineMismatch) -> None:
        """Until the job is suspended, deleted, or given to another coordinator: to try again would give the same."""
        log.error("%s: %s", error.reason, error)
        self._tell(StatusWarning(reason=error.reason, message=str(error)[:2048]))
        await self._following.unless_suspended(asyncio.Event().wait())

    def over(self) -> None:
        """It goes on."""
        self._tries = 0
        self._tell(None)

    def _tell(self, problem: StatusWarning | None) -> None:
        for reason in HALTING:
            self._reporter.problem(reason, problem if problem is not None and problem.reason == reason else None)
