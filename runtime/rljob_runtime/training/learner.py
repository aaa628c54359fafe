"""One GRPO step: groups -> raw gradient sums -> one normalised update a minibatch. Pure computation, no files, no
network but the collectives of its rank group."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from rljob_runtime.coordinator.protocols import TrainReport
from rljob_runtime.scheduling.trajectory import Group, PromptKey
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.contribution import Contribution, combine, normalise, take_gradients
from rljob_runtime.training.loss import Sums, policy_loss
from rljob_runtime.training.model import Policy
from rljob_runtime.training.optimizer import MasterOptimizer, Update
from rljob_runtime.training.packing import Block, MicroBatch, block_of, lay_out, minibatches, plan_rows, share_rows
from rljob_runtime.training.sharding import RankGroup

WORKER = "trainer"
"""The name under which the trainer's own contributions count."""


class Learner:
    """Computes contributions with `policy` and applies them by `optimizer`. All ranks call the same methods with the
    same groups; each takes its share of the rows."""

    def __init__(
        self,
        policy: Policy,
        optimizer: MasterOptimizer,
        config: TrainingConfig,
        *,
        reference: Policy | None = None,
        ranks: RankGroup | None = None,
    ):
        if config.kl_coefficient > 0 and reference is None:
            raise ValueError("kl_coefficient is above 0, so a reference model is needed")
        self.policy = policy
        self.optimizer = optimizer
        self.config = config
        self.reference = reference
        self.ranks = ranks or RankGroup()

    def train(self, step: int, groups: Sequence[Group]) -> TrainReport:
        """The update of `step` from all its groups. Raises `ValueError` for groups that cannot be trained on and
        `NonFiniteGradient`; a first minibatch that raises has changed nothing."""
        began = time.monotonic()
        blocks = self.prepare(groups)
        parts: list[Sums] = []
        updates: list[Update] = []
        for share in minibatches(list(blocks.items()), self.config.minibatches):
            total = combine([self.contribute(step, dict(share))])
            updates.append(self.optimizer.update(normalise(total, self.config.aggregation), step))
            parts.append(total.sums)
        return self._report(step, parts, updates, time.monotonic() - began)

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

    def contribute(self, step: int, blocks: dict[PromptKey, Block], *, term: int = 0) -> Contribution:
        """The raw gradient of `blocks`, computed by all ranks together (a sharded sum when there are several)."""
        work = sum(block.tokens for block in blocks.values())
        # Ranks share the work even where all of it would fit into one row.
        budget = min(self.config.max_tokens_per_microbatch, -(-work // self.ranks.size))
        rows = share_rows(plan_rows(blocks.values(), budget), self.ranks.size)[self.ranks.rank]
        sums = Sums()
        for row in rows:
            batch = lay_out(row, self.config.aggregation)
            sums = sums + self._backward(batch.to(self.policy.device, self.policy.dtype))
        return Contribution(
            step=step,
            worker=WORKER,
            term=term,
            groups=frozenset(blocks),
            gradients=take_gradients(self.policy.model),
            sums=self.ranks.sum(sums),
        )

    def _backward(self, batch: MicroBatch) -> Sums:
        """Add the raw gradient of one row to the parameters' gradients."""
        reference = self.reference.frozen_logprobs(batch) if self.reference else None
        logprobs, entropy = self.policy.logprobs(batch)
        loss, sums = policy_loss(
            logprobs,
            batch.behaviour,
            batch.advantages,
            batch.weights,
            self.config,
            reference=reference,
            entropy=entropy,
            sequences=batch.sequences,
        )
        torch.autograd.backward(loss)
        return sums

    def _report(self, step: int, parts: list[Sums], updates: list[Update], seconds: float) -> TrainReport:
        total = sum(parts[1:], parts[0])
        return TrainReport(
            step=step,
            loss=total.loss / total.normaliser(self.config.aggregation),
            grad_norm=sum(update.grad_norm for update in updates) / len(updates),
            learning_rate=updates[-1].learning_rate,
            # Later minibatches see moved weights: only the first compares the two programs at the same ones.
            mismatch_kl=parts[0].mismatch_kl / parts[0].tokens,
            clip_fraction=total.clipped / total.tokens,
            entropy=total.entropy / total.tokens,
            tokens=total.tokens,
            seconds=seconds,
        )
