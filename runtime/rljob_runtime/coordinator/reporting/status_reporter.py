"""Keeps `status.runtime` at the API server in step with what the coordinator knows, with as few writes as that
takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from rljob_api.status import RuntimeStatus, StatusWarning
from rljob_runtime.coordinator.core.async_utils import wait_for_event
from rljob_runtime.protocols import ControlPlane, PeerError
from rljob_runtime.scheduling.backoff import Backoff
from rljob_runtime.scheduling.status_cadence import Reported, seconds_until_report

log = logging.getLogger(__name__)


class Reporter:
    """Holds the draft; `run` writes it when the policy says so. All methods belong to the event loop's thread."""

    def __init__(self, control: ControlPlane, first: RuntimeStatus, back_off: Backoff) -> None:
        self._control = control
        self._back_off = back_off
        self._draft = first
        self._reported = Reported()
        self._changed = asyncio.Event()
        self._written = asyncio.Event()
        self.on_written: Callable[[RuntimeStatus], None] = lambda status: None

    @property
    def draft(self) -> RuntimeStatus:
        """The newest known status, written or not."""
        return self._draft

    def update(self, **fields: Any) -> None:
        """Something changed; it will be written in its time."""
        draft = self._draft.model_copy(update=fields)
        if draft != self._draft:
            self._draft = draft
            self._changed.set()

    def event(self, **fields: Any) -> None:
        """A boundary, a failure or an acknowledgement: written at once, and it wakes the operator."""
        self.update(**fields, event=self._draft.event + 1)

    def problem(self, reason: str, problem: StatusWarning | None) -> None:
        """There is such a problem now, or none of this reason any more; those of other reasons stay."""
        others = [known for known in self._draft.warnings if known.reason != reason]
        warnings = tuple(others if problem is None else [*others, problem])
        if warnings != self._draft.warnings:
            self.event(warnings=warnings)

    async def run(self) -> None:
        """Write until cancelled. An unreachable API server delays reports, never the training."""
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
        """Wait until the draft is written, at most so long. False when it was not."""
        try:
            async with asyncio.timeout(seconds):
                while self._reported.status is None or self._reported.status.event != self._draft.event:
                    self._written.clear()
                    await self._written.wait()
        except TimeoutError:
            return False
        return True
