"""Opening the store: waits for its holder and reports slow steps, before the coordinator exists."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from rljob_api.constants import STORE_HELD
from rljob_api.status import RuntimeStatus, StatusWarning
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.store.connection import Opening, StoreHeld
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreThread
from rljob_runtime.protocols import ControlPlane
from rljob_runtime.scheduling.backoff import Backoff

log = logging.getLogger(__name__)

Tell = Callable[[str, str | None], None]
"""(reason of a problem, its message; None: the problem is over)."""

LOOK_SECONDS = 1.0
LONG_SECONDS = 2.0
"""An opening that takes longer is reported."""
HELD_BACK_OFF = Backoff(initial=1.0, maximum=5.0)
"""Between tries to open a store that another process holds."""
STORE_OPENING = "StoreOpening"


class EarlyReports:
    """Problems reported while the coordinator starts. The coordinator continues from `draft`."""

    def __init__(self, control: ControlPlane, before: RuntimeStatus | None, back_off: Backoff) -> None:
        first = (before or RuntimeStatus()).model_copy(update={"stage": "Starting", "warnings": ()})
        self._reporter = Reporter(control, first, back_off)
        self._due = asyncio.Event()

    @property
    def draft(self) -> RuntimeStatus:
        """The status as last reported."""
        return self._reporter.draft

    def tell(self, reason: str, message: str | None) -> None:
        """Set or clear the problem of this reason."""
        self._reporter.problem(
            reason, None if message is None else StatusWarning(reason=reason, message=message[:2048])
        )
        if message is not None:
            self._due.set()

    @contextlib.asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Write reported problems while the context is open."""
        writing = asyncio.create_task(self._write(), name="early reports")
        try:
            yield
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self) -> None:
        await self._due.wait()
        await self._reporter.run()


async def open_store(opener: Callable[[Opening], Store], tell: Tell, patience: float) -> StoreThread:
    """Open the store in a thread of its own.

    Waits at most `patience` seconds for another holder: a coordinator that lost its Lease releases it. Raises
    `StoreUnusable`."""
    clock = asyncio.get_running_loop().time
    since, tries = clock(), 0
    while True:
        try:
            opened = await _open(opener, tell)
        except StoreHeld as error:
            tries += 1
            if clock() - since >= patience:
                raise
            log.warning("the store is waited for: %s", error)
            tell(STORE_HELD, f"{error}. The coordinator waits for it, and goes on as soon as it is free")
            await asyncio.sleep(HELD_BACK_OFF.delay(tries) or HELD_BACK_OFF.maximum)
        else:
            tell(STORE_HELD, None)
            return opened


async def _open(opener: Callable[[Opening], Store], tell: Tell) -> StoreThread:
    opening, clock = Opening(), asyncio.get_running_loop().time
    since, work = clock(), asyncio.ensure_future(StoreThread.open(opener, opening))
    try:
        while not (await asyncio.wait({work}, timeout=LOOK_SECONDS))[0]:
            if clock() - since >= LONG_SECONDS:
                doing = opening.doing or "the store is opened, and its journal brought into it"
                tell(STORE_OPENING, f"{doing}. Nothing is lost, and the job goes on when it is done")
        return await work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        tell(STORE_OPENING, None)
