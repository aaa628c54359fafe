"""Status reporter: writes `status.runtime` to the API server, with as few writes as possible."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from rljob_api.status import RuntimeStatus, StatusWarning
from rljob_runtime.coordinator.core.async_utils import wait_for_event
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.protocols import ControlPlane, PeerError
from rljob_runtime.scheduling.backoff import Backoff
from rljob_runtime.scheduling.status_cadence import Reported, seconds_until_report

log = logging.getLogger(__name__)


class Reporter:
    """Holds the pending status; `run` writes it. All methods must be called in the event loop's thread."""

    def __init__(
        self, control: ControlPlane, first: RuntimeStatus, back_off: Backoff, timeline: Timeline | None = None
    ) -> None:
        self.timeline = timeline or Timeline()
        """Where the parts of the coordinator record what they do."""
        self._control = control
        self._back_off = back_off
        self._draft = first
        self._reported = Reported()
        self._changed = asyncio.Event()
        self._written = asyncio.Event()
        self.on_written: Callable[[RuntimeStatus], None] = lambda status: None

    @property
    def draft(self) -> RuntimeStatus:
        """The newest status, written or not."""
        return self._draft

    def update(self, **fields: Any) -> None:
        """Change fields; they are written at the next periodic report."""
        draft = self._draft.model_copy(update=fields)
        if draft != self._draft:
            self._draft = draft
            self._changed.set()

    def event(self, **fields: Any) -> None:
        """Change fields at a boundary, a failure or an acknowledgement: they are written immediately."""
        self.update(**fields, event=self._draft.event + 1)

    def problem(self, reason: str, problem: StatusWarning | None) -> None:
        """There is such a problem now, or none of this reason any more; those of other reasons stay."""
        others = [known for known in self._draft.warnings if known.reason != reason]
        warnings = tuple(others if problem is None else [*others, problem])
        if warnings != self._draft.warnings:
            self.event(warnings=warnings)

    async def run(self) -> None:
        """Write until cancelled. An unreachable API server delays reports, not the training."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            wait = seconds_until_report(self._reported, self._draft, clock())
            if wait is None or wait > 0:
                self._changed.clear()
                await wait_for_event(self._changed, wait)
                continue
            status = self._draft
            try:
                await self._control.report(status)
            except PeerError as error:
                failures += 1
                log.warning("status could not be reported (try %d): %s", failures, error)
                await asyncio.sleep(self._back_off.delay(failures) or self._back_off.maximum)
            else:
                failures = 0
                self._reported = Reported(status, clock())
                self.on_written(status)
                self._written.set()

    async def flush(self, seconds: float) -> bool:
        """Wait until the pending status is written; return False if that takes longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self._reported.status is None or self._reported.status.event != self._draft.event:
                    self._written.clear()
                    await self._written.wait()
        except TimeoutError:
            return False
        return True
