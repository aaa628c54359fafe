"""Blocking conditions: the job cannot progress, but does not fail."""

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
    """Trainer and engine compute different values. Another try gives the same result."""

    reason = ENGINE_MISMATCH


class BlockedConditions:
    """The blocking conditions of one coordinator. Each is a warning in the status until `clear`."""

    def __init__(self, reporter: Reporter, follower: TargetFollower, back_off: Backoff) -> None:
        self._reporter = reporter
        self._follower = follower
        self._back_off = back_off
        self._tries = 0

    async def wait_for_retry(self, error: RewardsUnavailable | ExportRefused) -> None:
        """Report the condition and wait before the next try.

        Meanwhile the machine may get what it lacks, or the job may be suspended and moved.
        """
        self._tries += 1
        log.warning("%s (try %d): %s", error.reason, self._tries, error)
        message = f"{error}. The job tries again at growing intervals"
        self._report(StatusWarning(reason=error.reason, message=message[:2048]))
        await self._follower.unless_suspended(asyncio.sleep(self._back_off.delay(self._tries) or 0.0))

    async def block(self, error: EngineMismatch) -> None:
        """Report the condition and wait until the job is suspended, deleted or taken over. There is no other try."""
        log.error("%s: %s", error.reason, error)
        self._report(StatusWarning(reason=error.reason, message=str(error)[:2048]))
        await self._follower.unless_suspended(asyncio.Event().wait())

    def clear(self) -> None:
        """Clear the conditions: the job progresses."""
        self._tries = 0
        self._report(None)

    def _report(self, problem: StatusWarning | None) -> None:
        for reason in HALTING:
            self._reporter.problem(reason, problem if problem is not None and problem.reason == reason else None)
