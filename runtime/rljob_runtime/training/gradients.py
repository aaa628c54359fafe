"""Groups -> raw gradient sums, with the weights in hand: what trainer ranks and lent machines have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rljob_runtime.scheduling.trajectory import Group, PromptKey
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.contribution import Contribution, take_gradients
from rljob_runtime.training.loss import Sums, policy_loss
from rljob_runtime.training.model import Policy
from rljob_runtime.training.packing import Block, MicroBatch, block_of, lay_out, plan_rows, share_rows
from rljob_runtime.training.sharding import RankGroup

TRAINER = "trainer"
"""The name under which the trainer's own contributions count."""


class GradientComputer:
    """Computes contributions with `policy`, in the name of `worker`. All ranks call the same methods with the same
    groups; each takes its share of the rows."""

    def __init__(
        self,
        policy: Policy,
        config: TrainingConfig,
        *,
        reference: Policy | None = None,
        ranks: RankGroup | None = None,
        worker: str = TRAINER,
    ):
        if config.kl_coefficient > 0 and reference is None:
            raise ValueError("kl_coefficient is above 0, so a reference model is needed")
        self.policy = policy
        self.config = config
        self.reference = reference
        self.ranks = ranks or RankGroup()
        self.worker = worker

    def prepare(self, groups: Sequence[Group]) -> dict[PromptKey, Block]:
        """Blocks with advantages, in the order of their prompts. Raises `ValueError` naming what is wrong with a
        group."""
        if not groups:
            raise ValueError("no groups to train on")
        blocks: dict[PromptKey, Block] = {}
        for group in sorted(groups, key=lambda g: g.prompt):
            if group.prompt in blocks:
                raise ValueError(f"group {group.prompt} comes twice")
            blocks[group.prompt] = block_of(group, by_std=self.config.advantages_by_std)
        highest = max(max(block.highest_token for block in blocks.values()), 0)
        if highest >= self.policy.vocabulary:
            raise ValueError(f"token {highest} is outside the model's vocabulary of {self.policy.vocabulary}")
        return blocks

    def logprobs(self, blocks: dict[PromptKey, Block]) -> list[Tensor]:
        """What the weights in hand say of this rank's rows of `blocks`, on the CPU: `contribute`'s `proximal` later."""
        return [self.policy.frozen_logprobs(batch).cpu() for batch in self._rows(blocks)]

    def contribute(
        self, step: int, blocks: dict[PromptKey, Block], *, term: int = 0, proximal: Sequence[Tensor] | None = None
    ) -> Contribution:
        """The raw gradient of `blocks`, computed by all ranks together (a sharded sum when there are several).
        `proximal`: the `logprobs` of the same blocks at the start of the step, where the weights have moved since."""
        # A computation that broke off may have left a part of its gradient.
        self.policy.model.zero_grad(set_to_none=True)
        sums = Sums()
        for number, batch in enumerate(self._rows(blocks)):
            start = None if proximal is None else proximal[number].to(self.policy.device)
            sums = sums + self._backward(batch, start)
        return Contribution(
            step=step,
            worker=self.worker,
            term=term,
            groups=frozenset(blocks),
            gradients=take_gradients(self.policy.model),
            sums=self.ranks.sum(sums),
        )

    def _rows(self, blocks: dict[PromptKey, Block]) -> Iterator[MicroBatch]:
        """This rank's rows, the same ones at each call."""
        work = sum(block.tokens for block in blocks.values())
        # Ranks share the work even where all of it would fit into one row.
        budget = min(self.config.max_tokens_per_microbatch, -(-work // self.ranks.size))
        for row in share_rows(plan_rows(blocks.values(), budget), self.ranks.size)[self.ranks.rank]:
            yield lay_out(row, self.config.aggregation).to(self.policy.device, self.policy.dtype)

    def _backward(self, batch: MicroBatch, proximal: Tensor | None) -> Sums:
        """Add the raw gradient of one row to the parameters' gradients."""
        reference = self.reference.frozen_logprobs(batch) if self.reference else None
        logprobs, entropy = self.policy.logprobs(batch)
        loss, sums = policy_loss(
            logprobs,
            batch.behaviour,
            batch.advantages,
            batch.weights,
            self.config,
            proximal=proximal,
            reference=reference,
            entropy=entropy,
            sequences=batch.sequences,
        )
        torch.autograd.backward(loss)
        return sums
