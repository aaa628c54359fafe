"""Delegating backend: passes every call to another backend. Base class of backends that change one or two calls."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.status import Member
from rljob_runtime.protocols import Backend, MachinePeers, Trainer


class DelegatingBackend:
    """A `protocols.Backend` over `backend`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        """See `protocols.Backend.trainer`."""
        return await self._backend.trainer(term, members)

    async def has_trainer(self, members: Sequence[Member]) -> bool:
        """See `protocols.Backend.has_trainer`."""
        return await self._backend.has_trainer(members)

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        """See `protocols.Backend.rollout_machine`."""
        return await self._backend.rollout_machine(term, member, model_files)

    async def release(self, member: Member) -> None:
        """See `protocols.Backend.release`."""
        await self._backend.release(member)
