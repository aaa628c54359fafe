"""One GRPO step: groups -> raw gradient sums -> one normalised update a minibatch. Pure computation, no files, no
network but the collectives of its rank group."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

from rljob_runtime.coordinator.protocols import TrainReport
from rljob_runtime.scheduling.trajectory import Group, PromptKey
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.contribution import Contribution, combine, normalise, take_gradients
from rljob_runtime.training.early import EarlySums
from rljob_runtime.training.loss import Sums, policy_loss
from rljob_runtime.training.model import Policy
from rljob_runtime.training.optimizer import MasterOptimizer, Update
from rljob_runtime.training.packing import Block, MicroBatch, block_of, lay_out, minibatches, plan_rows, share_rows
from rljob_runtime.training.sharding import RankGroup

log = logging.getLogger(__name__)

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
        self._early: EarlySums | None = None

    def take_early(self, step: int, groups: Sequence[Group]) -> int:
        """Compute the raw gradient sums of those of `groups` that are not in yet, for `train(step)` to begin with; how
        many groups of the step are in now. Costs the memory of a second gradient. Raises `ValueError` for groups that
        cannot be trained on, and where several updates are made of a step: all but the first see other weights."""
        if self.config.minibatches > 1:
            raise ValueError(
                f"minibatches is {self.config.minibatches}: gradients can be computed early where a step is one update"
            )
        blocks = self.prepare(groups)
        early = self._early_of(step)
        if early is not None and not early.agrees_with(blocks):
            log.warning("step %d: a group comes again with other contents; its early sums are dropped", step)
            early = self._early = None
        fresh = blocks if early is None else early.missing(blocks)
        if fresh:
            contribution = self.contribute(step, fresh)
            early = self._early = early.plus(fresh, contribution) if early else EarlySums(fresh, contribution)
        assert early is not None, "prepare refuses to have no groups"
        return len(early.blocks)

    def train(self, step: int, groups: Sequence[Group]) -> TrainReport:
        """The update of `step` from all its groups; what `take_early` has of them is not computed again. Raises
        `ValueError` for groups that cannot be trained on and `NonFiniteGradient`; a first minibatch that raises has
        changed nothing."""
        began = time.monotonic()
        blocks = self.prepare(groups)
        early, self._early = self._early_of(step), None
        if early is not None and not early.part_of(blocks):
            log.warning(
                "step %d is not trained on all that came early, or on other contents: nothing of it is used", step
            )
            early = None
        parts: list[Sums] = []
        updates: list[Update] = []
        for share in minibatches(list(blocks.items()), self.config.minibatches):
            total = self._total(step, dict(share), early)
            updates.append(self.optimizer.update(normalise(total, self.config.aggregation), step))
            parts.append(total.sums)
        return self._report(step, parts, updates, len(early.blocks) if early else 0, time.monotonic() - began)

    def _early_of(self, step: int) -> EarlySums | None:
        """What came early, if it is of this step: every step has weights of its own."""
        return self._early if self._early is not None and self._early.total.step == step else None

    def _total(self, step: int, blocks: dict[PromptKey, Block], early: EarlySums | None) -> Contribution:
        """The raw sums of `blocks`, of which `early` has a part."""
        if early is None:
            return self.contribute(step, blocks)
        missing = early.missing(blocks)
        return combine([early.total, self.contribute(step, missing)]) if missing else early.total

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
        # A computation that broke off may have left a part of its gradient.
        self.policy.model.zero_grad(set_to_none=True)
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

    def _report(
        self, step: int, parts: list[Sums], updates: list[Update], early_groups: int, seconds: float
    ) -> TrainReport:
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
            early_groups=early_groups,
        )
