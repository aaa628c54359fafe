"""Confirmed term: a coordinator ends actors only after the API server has confirmed its Lease.

A coordinator that is cut off from all machines marks them lost, though they work. Its releases would stay in Ray's
tables. The next coordinator would have to restart every engine and the trainer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rljob_api.status import Member
from rljob_runtime.protocols import Backend
from rljob_runtime.protocols.delegating import DelegatingBackend


class ConfirmedBackend(DelegatingBackend):
    """A backend that confirms the term before each release.

    `confirm` returns when the API server has confirmed the Lease again. It never returns while the server is
    unreachable.
    """

    def __init__(self, backend: Backend, confirm: Callable[[], Awaitable[None]]) -> None:
        super().__init__(backend)
        self._confirm = confirm

    async def release(self, member: Member) -> None:
        """See `protocols.Backend.release`."""
        await self._confirm()
        await super().release(member)
