"""Simulated trainer: its weights are the history of what it was trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.protocols import (
    Chain,
    ContributeReport,
    ContributionReceipt,
    PublishReport,
    Refused,
    RelayMember,
    TermFence,
    TrainerState,
    TrainReport,
    VolumeFull,
)
from rljob_runtime.protocols.trajectory import Group, PromptKey
from rljob_runtime.simulator.core.events import (
    Checkpointed,
    Contributed,
    Exported,
    Observe,
    Part,
    Published,
    Restored,
    Trained,
    unobserved,
)
from rljob_runtime.simulator.core.process_clock import ProcessClock, loop_time
from rljob_runtime.simulator.core.tokens import digest
from rljob_runtime.simulator.peers.relay import Network

TRAINER = "trainer"

History = tuple[tuple[str, ...], ...]
"""The ids of each update, in order."""


@dataclass
class TrainerDisk:
    """What outlives the trainer's process: checkpoints by step. `full`: number of faults that fill it."""

    checkpoints: dict[int, History] = field(default_factory=lambda: {0: ()})
    snapshots: dict[int, str] = field(default_factory=dict)
    """The coordinator's snapshot in each checkpoint."""
    models: dict[int, History] = field(default_factory=dict)
    """Models of evaluated steps."""
    best: tuple[int, History] | None = None
    """Step and content of the exported best model."""
    full: int = 0
    unreadable: int = 0
    """Number of next looks at its models that fail."""
    not_kept: set[int] = field(default_factory=set)
    """Steps whose last model could not be written, or was deleted while there was no room."""
    room: int | None = None
    """Models beside which a checkpoint has room, and one more than which can be written; None: any number."""

    @property
    def has_room(self) -> bool:
        """Whether one more file fits."""
        return not self.full and (self.room is None or len(self.models) <= self.room)

    def check_room(self) -> None:
        """Raise `VolumeFull` if no further file fits."""
        if not self.has_room:
            raise VolumeFull("no space left on the checkpoint volume")

    def save_model(self, step: int, content: History) -> None:
        """Write a model. Raises `VolumeFull`; a model of that step that is there stays."""
        if self.models.get(step) != content:
            self.not_kept.add(step)
        self.check_room()
        self.models[step] = content
        self.not_kept.discard(step)

    def retain_models(self, keep: Sequence[int] | None) -> None:
        """Delete models except those to keep. Raises `Refused`."""
        if self.unreadable:
            self.unreadable -= 1
            raise Refused("the folder of the models cannot be read")
        left = {step: one for step, one in self.models.items() if keep is None or step in keep}
        if not self.has_room:
            self.not_kept |= self.models.keys() - left.keys()
        self.models = left


@dataclass
class TrainerCosts:
    """Costs in seconds. An update takes `step`, and `token` per token; `publish` is the copy into the host buffer."""

    start: float = 0.0
    step: float = 2.0
    token: float = 0.0
    publish: float = 0.0
    loan_start: float = 0.0
    """Until a loaned machine computes: its engines release their memory, and it loads the weights."""
    loaned_token: float = 0.0
    """Of a loaned machine, per token that it sums."""
    bring: float = 0.0
    """To transfer one loaned machine's sums to the trainer, whose link all of them share."""
    checkpoint: float = 0.0
    mismatch: float = 0.0
    """No cost: the KL of the sampler to the trainer that an update reports."""


@dataclass(frozen=True)
class Early:
    """Sums that arrived before their update: their worker, weights and groups."""

    worker: str
    content: int
    groups: tuple[Group, ...]


class GradientInboxes:
    """Inboxes for the sums of loaned machines.

    An entry is the content of the weights that its sums were computed with, by number. `count`: open inboxes."""

    def __init__(self) -> None:
        self.lying: dict[int, int] = {}
        self.count = 0

    def open(self, count: int) -> None:
        """Open inboxes for this many contributions, all empty."""
        self.lying, self.count = {}, count

    def put(self, number: int, content: int) -> None:
        """Accept a contribution. Raises `Refused` without such an inbox."""
        if not 1 <= number <= self.count:
            raise Refused(f"contribution {number} did not reach the trainer: {self.count} inboxes are open")
        self.lying[number] = content


def tokens_of(groups: Sequence[Group]) -> int:
    """Count response tokens in these groups."""
    return sum(len(scored.response.token_ids) for group in groups for scored in group.responses)


class SimulatedTrainer:
    """`protocols.Trainer`, one task at a time, as the ranks do. A new one starts from the newest checkpoint."""

    def __init__(
        self,
        disk: TrainerDisk | None = None,
        network: Network | None = None,
        costs: TrainerCosts | None = None,
        pace: ProcessClock | None = None,
        observe: Observe = unobserved,
    ) -> None:
        self._disk = disk or TrainerDisk()
        self._network = network
        self._costs = costs or TrainerCosts()
        self._pace = pace or ProcessClock()
        self._observe = observe
        self.publishing: int | None = None
        self._fence = TermFence("the trainer")
        self._busy = asyncio.Lock()
        self._step = max(self._disk.checkpoints)
        self.history = self._disk.checkpoints[self._step]
        self._restored = f"step-{self._step}" if self._step else None
        self._started = False
        self._published: tuple[int, int] | None = None
        self.inboxes = GradientInboxes()
        self._early: list[Early] = []
        """Workers whose gradients of the next step's groups arrived."""

    async def start(self, term: int) -> TrainerState:
        self._fence.check(term)
        async with self._busy:
            if not self._started:
                await self._pace.sleep(self._costs.start)
                self._started = True
                self._observe(Restored(self._step, digest(self.history)))
            kept = max(self._disk.checkpoints)
            coordinator_snapshot = self._disk.snapshots.get(kept)
            return TrainerState(self._step, self._restored, 1, {"config.json": b"{}"}, kept, coordinator_snapshot)

    async def contribute(self, term: int, step: int, groups: Sequence[Group]) -> ContributeReport:
        self._fence.check(term)
        async with self._busy:
            if step == self._step:
                return ContributeReport(step, 0, 0.0)
            if step != self._step + 1:
                raise Refused(f"step {step} takes no groups: {self._step} are done")
            if any(self._held().get(group.prompt, group) != group for group in groups):
                self._early = []
            fresh = [group for group in groups if group.prompt not in self._held()]
            since, seconds = loop_time(), tokens_of(fresh) * self._costs.token
            await self._pace.sleep(seconds)
            if fresh:
                self._early.append(Early(TRAINER, digest(self.history), tuple(fresh)))
                self._observe(Contributed(step, tuple(group.prompt for group in fresh), since))
            return ContributeReport(step, len(self._held()), seconds, tokens_of(fresh))

    async def open_gradient_inboxes(self, term: int, count: int) -> tuple[RelayMember, ...]:
        self._fence.check(term)
        self.inboxes.open(count)
        return tuple(RelayMember(f"inbox-{number}", 0, TRAINER, number) for number in range(1, count + 1))

    async def accept(self, term: int, receipt: ContributionReceipt, groups: Sequence[Group]) -> ContributeReport:
        self._fence.check(term)
        async with self._busy:
            step = receipt.step
            if step == self._step:
                return ContributeReport(step, 0, 0.0)
            if (receipt.term, step) != (term, self._step + 1):
                raise Refused(f"a contribution of term {receipt.term} to step {step}: {self._step} are done")
            if self._published != (receipt.version, self._step):
                raise Refused(f"a contribution with version {receipt.version}; {self._published} is at hand")
            if receipt.number not in self.inboxes.lying:
                raise Refused(f"contribution {receipt.number} is expected; its inbox holds none")
            if {group.prompt for group in groups} != set(receipt.groups):
                raise Refused(f"{receipt.worker} contributes other groups than are expected")
            known = [group.prompt in self._held() for group in groups]
            if any(known) and not all(known):
                raise Refused(f"a part of what {receipt.worker} contributes is in already")
            if not any(known):
                self._early.append(Early(receipt.worker, self.inboxes.lying[receipt.number], tuple(groups)))
            return ContributeReport(step, len(self._held()), 0.0)

    def _held(self) -> dict[PromptKey, Group]:
        return {group.prompt: group for early in self._early for group in early.groups}

    async def train(self, term: int, step: int, groups: Sequence[Group]) -> TrainReport:
        self._fence.check(term)
        async with self._busy:
            if step not in (self._step, self._step + 1):
                raise Refused(f"step {step} is not the next: {self._step} are done")
            if not {group.prompt: group for group in groups}.items() >= self._held().items():
                self._early = []
            early = self._held()
            late = tuple(group for group in groups if group.prompt not in early)
            seconds = self._costs.step + tokens_of(late) * self._costs.token
            if step > self._step:
                since, before = loop_time(), digest(self.history)
                parts = [*self._early, *([Early(TRAINER, before, late)] if late else ())]
                self._early = []
                await self._pace.sleep(seconds)
                ids = tuple(str(scored.response.key) for group in groups for scored in group.responses)
                self.history = (*self.history, ids)
                self._step = step
                self.inboxes.open(0)
                told = tuple(Part(p.worker, p.content, tuple(group.prompt for group in p.groups)) for p in parts)
                self._observe(Trained(step, tuple(groups), before, digest(self.history), since, told))
            return TrainReport(
                step, 0.0, 1.0, 1e-3, self._costs.mismatch, 0.0, 1.0, tokens_of(groups), seconds, len(early)
            )

    async def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        self._fence.check(term)
        async with self._busy:
            if step != self._step:
                raise Refused(f"version {version} of step {step}: {self._step} is at hand")
            last = self._published
            if last is not None and version <= last[0] and last != (version, step):
                raise Refused(f"version {version} at step {step}: version {last[0]} was published at {last[1]}")
            since, content = loop_time(), digest(self.history)
            self.publishing = version
            await self._pace.sleep(self._costs.publish)
            self.publishing = None
            self._published = version, step
            self._observe(Published(version, step, content, since))
            if self._network is not None and chain.members:
                self._network.ship("trainer", chain.members[0].machine, version, content)
            return PublishReport(version, 1, loop_time() - since)

    async def checkpoint(self, term: int, step: int, coordinator_snapshot: str) -> str:
        self._fence.check(term)
        async with self._busy:
            if step != self._step:
                raise Refused(f"step {step} is not at hand: {self._step} is")
            self._disk.check_room()
            since = loop_time()
            await self._pace.sleep(self._costs.checkpoint)
            self._disk.checkpoints[step], self._disk.snapshots[step] = self.history, coordinator_snapshot
            self._observe(Checkpointed(step, since))
            return f"step-{step}"

    async def export(self, term: int) -> str:
        self._fence.check(term)
        self._disk.check_room()
        self._observe(Exported(self._step))
        return "/var/lib/rljob/checkpoints/model"

    async def save_model(self, term: int, step: int) -> tuple[int, ...]:
        self._fence.check(term)
        async with self._busy:
            if step != self._step:
                raise Refused(f"step {step} is not at hand: {self._step} is")
            self._disk.save_model(step, self.history)
            return tuple(sorted(self._disk.models))

    async def retain_models(self, term: int, keep: Sequence[int] | None) -> tuple[int, ...]:
        self._fence.check(term)
        self._disk.retain_models(keep)
        return tuple(sorted(self._disk.models))

    async def export_best(self, term: int, step: int) -> str:
        self._fence.check(term)
        if step not in self._disk.models:
            raise Refused(f"there is no model of step {step}")
        self._disk.best = step, self._disk.models[step]
        return "/var/lib/rljob/checkpoints/best"
