"""Learner: one step from rows to raw gradient sums to a normalised update per minibatch.

Pure computation: no files, and no network but the collectives of its rank group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from torch import Tensor

from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.training.algorithm.sums import LossSums
from rljob_runtime.training.batch.delivery import Delivery, Outline, Shares
from rljob_runtime.training.batch.rows import Share
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.optimizer import MasterOptimizer, Update
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.sharding import RankGroup
from rljob_runtime.training.step.contribution import Contribution, combine, normalise
from rljob_runtime.training.step.early_gradients import EarlyGradients
from rljob_runtime.training.step.gradients import GradientComputer, check_counts

log = logging.getLogger(__name__)


class Learner(GradientComputer):
    """Computes contributions, accepts those of other workers, and applies them with `optimizer`."""

    def __init__(
        self,
        policy: Policy,
        optimizer: MasterOptimizer,
        config: TrainingConfig,
        *,
        reference: Policy | None = None,
        ranks: RankGroup | None = None,
    ):
        super().__init__(policy, config, reference=reference, ranks=ranks)
        self.optimizer = optimizer
        self._early: EarlyGradients | None = None

    def held_groups(self, step: int) -> Mapping[PromptKey, Outline]:
        """Return the groups of the step whose sums are held."""
        early = self._early_of(step)
        return early.groups if early is not None else {}

    def contribute_early(self, step: int, delivery: Delivery, shares: Shares) -> tuple[int, int]:
        """Compute the raw sums of new groups before `train(step)`, which starts from them.

        Returns how many groups of the step are held and how many loss tokens were computed. Costs the memory of a
        second gradient. Raises `ValueError` for groups that cannot be trained on. It also raises when a step has
        several updates, because later updates use other weights.
        """
        self._require_one_update()
        groups = delivery.groups
        self.check_tokens(groups)
        early = self._early = self._usable_early(step, delivery)
        tokens = 0
        if groups:
            (share,) = shares
            contribution = self.contribute(step, groups, share)
            tokens = contribution.sums.tokens
            self._early = early.plus(groups, contribution) if early else EarlyGradients.of(groups, contribution)
        return len(self.held_groups(step)), tokens

    def accept(self, step: int, delivery: Delivery, contribution: Contribution) -> int:
        """Add another worker's sums of exactly these groups, completely and once.

        A repetition adds nothing. Returns how many groups of the step are held. Raises `ValueError`, with nothing
        changed, when some of the groups are already held, for another step, and when the counts of tokens or groups do
        not match.
        """
        self._require_one_update()
        groups = delivery.groups
        self.check_tokens(groups)
        if contribution.step != step or contribution.groups != {group.prompt for group in groups}:
            raise ValueError(
                f"{contribution.worker} contributes {len(contribution.groups)} groups of step {contribution.step}; "
                f"{len(groups)} of step {step} are expected"
            )
        check_counts(contribution, groups)
        early = self._early_of(step)
        if early is not None and early.has(groups):
            return len(early.groups)
        self._early = early.plus(groups, contribution) if early else EarlyGradients.of(groups, contribution)
        return len(self._early.groups)

    def train(self, step: int, delivery: Delivery, shares: Shares) -> TrainReport:
        """Train `step` on all its groups.

        Groups whose sums are held need no rows. Raises `ValueError` for groups that cannot be trained on, and
        `NonFiniteGradient`. A first minibatch that raises changes nothing.
        """
        began = time.monotonic()
        self.check_tokens(delivery.groups)
        early, self._early = self._usable_early(step, delivery), None
        if early is not None and not early.part_of(delivery.groups):
            raise ValueError("the held sums have groups that the step does not train on, or other contents")
        parts: list[LossSums] = []
        updates: list[Update] = []
        for groups, share, proximal in zip(delivery.updates, shares, self._proximal(shares), strict=True):
            total = self._total(step, groups, share, early, proximal)
            gradients = normalise(total, self.config.aggregation)
            # AdamW's moments would move the weights without a loss token.
            apply = self.optimizer.update if total.sums.tokens else self.optimizer.skip
            updates.append(apply(gradients, step))
            parts.append(total.sums)
        return self._report(step, parts, updates, len(early.groups) if early else 0, time.monotonic() - began)

    def _require_one_update(self) -> None:
        if self.config.minibatches > 1:
            raise ValueError(
                f"minibatches is {self.config.minibatches}: gradients can be computed early where a step is one update"
            )

    def _early_of(self, step: int) -> EarlyGradients | None:
        """Return the early sums of this step.

        Every step has its own weights, so sums of another step do not count.
        """
        return self._early if self._early is not None and self._early.total.step == step else None

    def _usable_early(self, step: int, delivery: Delivery) -> EarlyGradients | None:
        """Return the early sums that count for this delivery."""
        early = self._early_of(step)
        if early is not None and not delivery.keeps:
            log.warning("step %d: early groups are missing or have other contents; their sums are dropped", step)
            return None
        return early

    def _proximal(self, shares: Shares) -> list[list[Tensor] | None]:
        """Compute the logprobs of each share at the start of the step.

        None means that they are those of the share's own pass. Call it before the first update, because later shares
        see the weights after it.
        """
        if self.config.importance_cap is None:
            return [None for _ in shares]
        return [None, *(self.logprobs(share) for share in shares[1:])]

    def _total(
        self,
        step: int,
        groups: Sequence[Outline],
        share: Share,
        early: EarlyGradients | None,
        proximal: list[Tensor] | None,
    ) -> Contribution:
        """Combine the early sums of `groups` with the sums that the share computes."""
        if early is None:
            return self.contribute(step, groups, share, proximal=proximal)
        missing = early.missing(groups)
        return combine([early.total, self.contribute(step, missing, share)]) if missing else early.total

    def _report(
        self, step: int, parts: list[LossSums], updates: list[Update], early_groups: int, seconds: float
    ) -> TrainReport:
        total = sum(parts[1:], parts[0])
        # The mismatch compares two programs at equal weights. Later minibatches see changed weights, unless the
        # proximal logprobs of the step's start were kept.
        compared = parts[0] if self.config.importance_cap is None else total
        tokens = max(1, total.tokens)
        return TrainReport(
            step=step,
            loss=total.loss / max(1, total.normaliser(self.config.aggregation)),
            grad_norm=sum(update.grad_norm for update in updates) / len(updates),
            learning_rate=updates[-1].learning_rate,
            mismatch_kl=compared.mismatch_kl / max(1, compared.tokens),
            clip_fraction=total.metric("clip_fraction_low") + total.metric("clip_fraction_high"),
            entropy=total.entropy / tokens,
            tokens=total.tokens,
            seconds=seconds,
            early_groups=early_groups,
            capped_fraction=total.capped / tokens,
            effective_sample_size=compared.effective_sample_size,
            reference_kl=None if self.reference is None else total.reference_kl / tokens,
            metrics=total.means(),
        )
