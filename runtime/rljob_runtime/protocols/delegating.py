"""A binding that hands every call to another one: what those change of one or two calls begin with."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.status import Member
from rljob_runtime.protocols import Backend, MachinePeers, Trainer


class DelegatingBackend:
    """`protocols.Backend`: that of `binding`."""

    def __init__(self, binding: Backend) -> None:
        self._binding = binding

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        """See `protocols.Backend.trainer`."""
        return await self._binding.trainer(term, members)

    async def has_trainer(self, members: Sequence[Member]) -> bool:
        """See `protocols.Backend.has_trainer`."""
        return await self._binding.has_trainer(members)

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        """See `protocols.Backend.rollout_machine`."""
        return await self._binding.rollout_machine(term, member, model_files)

    async def release(self, member: Member) -> None:
        """See `protocols.Backend.release`."""
        await self._binding.release(member)
