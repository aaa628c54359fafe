"""Simulated gradient worker: its sums are a set of groups, with the content of the weights used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rljob_runtime.protocols import ComputeReport, ContributionReceipt, Refused, RelayMember, TermFence, WrongVersion
from rljob_runtime.protocols.trajectory import Group, PromptKey
from rljob_runtime.simulator.core.events import Brought, Summed
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.peers.host import Host
from rljob_runtime.simulator.peers.trainer import GradientInboxes, TrainerCosts, tokens_of

InboxesNow = Callable[[], GradientInboxes | None]
"""The trainer's inboxes, while they are reachable from the machine."""


class SimulatedWorker:
    """`protocols.GradientWorker`, one task at a time, if its host has room."""

    def __init__(
        self,
        name: str,
        host: Host,
        inboxes: InboxesNow = lambda: None,
        costs: TrainerCosts | None = None,
    ) -> None:
        self.name = name
        self._weights = host.weights
        self._inboxes = inboxes
        self._costs = costs or TrainerCosts()
        self._pace = host.pace
        self._observe = host.observe
        self._room = host.room
        self._fence = TermFence(name)
        self._busy = asyncio.Lock()
        self._task: tuple[int, int, int] | None = None
        self._content = 0
        self._groups: dict[PromptKey, Group] = {}

    @property
    def holds(self) -> bool:
        """Whether weights or sums are in memory."""
        return self._task is not None

    async def compute(self, term: int, step: int, version: int, groups: Sequence[Group]) -> ComputeReport:
        self._fence.check(term)
        async with self._busy:
            since, start = loop_time(), 0.0
            if not self._room():
                raise Refused(f"{self.name}: out of memory: the replicas' engines hold it")
            if self._task != (term, step, version):
                if self._weights.whole != version:
                    raise WrongVersion(f"the relay holds version {self._weights.whole}, not {version}")
                self._task, self._content, self._groups = (term, step, version), self._weights.content, {}
                start = self._costs.loan_start
            fresh = [group for group in groups if group.prompt not in self._groups]
            tokens = tokens_of(fresh)
            seconds = start + tokens * self._costs.loaned_token
            await self._pace.sleep(seconds)
            self._groups.update((group.prompt, group) for group in fresh)
            if fresh:
                prompts = tuple(group.prompt for group in fresh)
                self._observe(Summed(self.name, step, prompts, self._content, since))
            return ComputeReport(step, len(self._groups), tokens, seconds)

    async def deliver(self, term: int, step: int, number: int, inbox: RelayMember) -> ContributionReceipt:
        self._fence.check(term)
        async with self._busy:
            if self._task is None or self._task[:2] != (term, step) or not self._groups:
                raise Refused(f"{self.name} holds no sums of step {step}, term {term}")
            since, version = loop_time(), self._task[2]
            inboxes = self._inboxes()
            sharing = inboxes.count if inboxes is not None else 1
            await self._pace.sleep(self._costs.bring * sharing)
            inboxes = self._inboxes()  # the trainer may have been lost meanwhile
            if inboxes is None:
                raise Refused(f"contribution {number} did not reach {inbox.host}")
            inboxes.put(number, self._content)
            self._observe(Brought(self.name, step, len(self._groups), since))
            groups = tuple(sorted(self._groups))
            return ContributionReceipt(
                step, self.name, term, version, number, groups, tokens_of(list(self._groups.values())), 1
            )

    async def release(self, term: int) -> None:
        self._fence.check(term)
        async with self._busy:
            self._task, self._groups = None, {}
