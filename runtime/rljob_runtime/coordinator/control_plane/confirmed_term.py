"""A coordinator ends nobody's processes before it has made sure that it is in office.

Whoever is cut off from all machines takes them for lost, though they work. What it ends is ended in Ray's tables. Its
successor takes these up, and would have to start every engine and the trainer anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rljob_api.status import Member
from rljob_runtime.protocols import Backend
from rljob_runtime.protocols.delegating import DelegatingBackend


class ConfirmedBackend(DelegatingBackend):
    """Another backend, that ends nobody unconfirmed. `confirm` returns once the API server has confirmed the office
    anew, and never where that cannot be reached."""

    def __init__(self, backend: Backend, confirm: Callable[[], Awaitable[None]]) -> None:
        super().__init__(backend)
        self._confirm = confirm

    async def release(self, member: Member) -> None:
        """See `protocols.Backend.release`."""
        await self._confirm()
        await super().release(member)
