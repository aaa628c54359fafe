"""A coordinator ends nobody's processes before it has made sure that it is in office.

Whoever is cut off from all machines takes them for lost, though they work. What it ends is ended in Ray's tables. Its
successor takes these up, and would have to start every engine and the trainer anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rljob_api.status import Member
from rljob_runtime.coordinator.protocols import Binding, RolloutMachine, Trainer


class ConfirmedBinding:
    """`protocols.Binding`. `confirm` returns once the API server has confirmed the office anew, and never where that
    cannot be reached."""

    def __init__(self, binding: Binding, confirm: Callable[[], Awaitable[None]]) -> None:
        self._binding = binding
        self._confirm = confirm

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        """See `protocols.Binding.trainer`."""
        return await self._binding.trainer(term, members)

    async def has_trainer(self, members: Sequence[Member]) -> bool:
        """See `protocols.Binding.has_trainer`."""
        return await self._binding.has_trainer(members)

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> RolloutMachine:
        """See `protocols.Binding.rollout_machine`."""
        return await self._binding.rollout_machine(term, member, model_files)

    async def release(self, member: Member) -> None:
        """See `protocols.Binding.release`."""
        await self._confirm()
        await self._binding.release(member)
