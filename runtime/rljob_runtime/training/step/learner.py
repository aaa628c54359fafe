"""One GRPO step: rows -> raw gradient sums -> one normalised update a minibatch. Pure computation, no files, no
network but the collectives of its rank group."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from torch import Tensor

from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.training.algorithm.loss import Sums
from rljob_runtime.training.batch.delivery import Delivery, Outline, Shares
from rljob_runtime.training.batch.rows import Share
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.optimizer import MasterOptimizer, Update
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.sharding import RankGroup
from rljob_runtime.training.step.contribution import Contribution, combine, normalise
from rljob_runtime.training.step.early_gradients import EarlySums
from rljob_runtime.training.step.gradients import GradientComputer, check_counts

log = logging.getLogger(__name__)


class Learner(GradientComputer):
    """Computes contributions, takes those of others, and applies them by `optimizer`."""

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
        self._early: EarlySums | None = None

    def held(self, step: int) -> Mapping[PromptKey, Outline]:
        """The groups of the step whose sums are in."""
        early = self._early_of(step)
        return early.groups if early is not None else {}

    def take_early(self, step: int, delivery: Delivery, shares: Shares) -> tuple[int, int]:
        """Compute the raw gradient sums of these groups, which are not in yet, for `train(step)` to begin with; how
        many groups of the step are in now, and how many loss tokens were computed. Costs the memory of a second
        gradient. Raises `ValueError` for groups that cannot be trained on, and where several updates are made of a
        step: all but the first see other weights."""
        self._expect_one_update()
        groups = delivery.groups
        self.check_tokens(groups)
        early = self._early = self._kept(step, delivery)
        tokens = 0
        if groups:
            (share,) = shares
            contribution = self.contribute(step, groups, share)
            tokens = contribution.sums.tokens
            self._early = early.plus(groups, contribution) if early else EarlySums.of(groups, contribution)
        return len(self.held(step)), tokens

    def accept(self, step: int, delivery: Delivery, contribution: Contribution) -> int:
        """Take the sums that another worker made of exactly these groups, whole and once: a repetition adds nothing.
        How many groups of the step are in now. Raises `ValueError`, with nothing changed, when a part of them is in
        already, for another step, and for a count of tokens or groups that is not that of the groups."""
        self._expect_one_update()
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
        self._early = early.plus(groups, contribution) if early else EarlySums.of(groups, contribution)
        return len(self._early.groups)

    def train(self, step: int, delivery: Delivery, shares: Shares) -> TrainReport:
        """The update of `step` from all its groups; what the sums in hand have of them comes without rows. Raises
        `ValueError` for groups that cannot be trained on and `NonFiniteGradient`; a first minibatch that raises has
        changed nothing."""
        began = time.monotonic()
        self.check_tokens(delivery.groups)
        early, self._early = self._kept(step, delivery), None
        if early is not None and not early.part_of(delivery.groups):
            raise ValueError("sums are in of groups that it is not trained on, or of other contents")
        parts: list[Sums] = []
        updates: list[Update] = []
        for groups, share, proximal in zip(delivery.updates, shares, self._proximal(shares), strict=True):
            total = self._total(step, groups, share, early, proximal)
            updates.append(self.optimizer.update(normalise(total, self.config.aggregation), step))
            parts.append(total.sums)
        return self._report(step, parts, updates, len(early.groups) if early else 0, time.monotonic() - began)

    def _expect_one_update(self) -> None:
        if self.config.minibatches > 1:
            raise ValueError(
                f"minibatches is {self.config.minibatches}: gradients can be computed early where a step is one update"
            )

    def _early_of(self, step: int) -> EarlySums | None:
        """What came early, if it is of this step: every step has weights of its own."""
        return self._early if self._early is not None and self._early.total.step == step else None

    def _kept(self, step: int, delivery: Delivery) -> EarlySums | None:
        """What came early and counts."""
        early = self._early_of(step)
        if early is not None and not delivery.keeps:
            log.warning(
                "step %d: groups that came early come no more, or with other contents; their sums are dropped", step
            )
            return None
        return early

    def _proximal(self, shares: Shares) -> list[list[Tensor] | None]:
        """The logprobs of each share at the start of the step, None where they are those of its own pass. To be asked
        for before the first update: the later shares see the weights after it."""
        if self.config.importance_cap is None:
            return [None for _ in shares]
        return [None, *(self.logprobs(share) for share in shares[1:])]

    def _total(
        self,
        step: int,
        groups: Sequence[Outline],
        share: Share,
        early: EarlySums | None,
        proximal: list[Tensor] | None,
    ) -> Contribution:
        """The raw sums of `groups`: of some they are in early, the share has the others."""
        if early is None:
            return self.contribute(step, groups, share, proximal=proximal)
        missing = early.missing(groups)
        return combine([early.total, self.contribute(step, missing, share)]) if missing else early.total

    def _report(
        self, step: int, parts: list[Sums], updates: list[Update], early_groups: int, seconds: float
    ) -> TrainReport:
        total = sum(parts[1:], parts[0])
        # Two programs are compared at the same weights: later minibatches see moved ones, unless the step's first were
        # kept for them.
        compared = parts[0] if self.config.importance_cap is None else total
        return TrainReport(
            step=step,
            loss=total.loss / total.normaliser(self.config.aggregation),
            grad_norm=sum(update.grad_norm for update in updates) / len(updates),
            learning_rate=updates[-1].learning_rate,
            mismatch_kl=compared.mismatch_kl / compared.tokens,
            clip_fraction=total.clipped / total.tokens,
            entropy=total.entropy / total.tokens,
            tokens=total.tokens,
            seconds=seconds,
            early_groups=early_groups,
            capped_fraction=total.capped / total.tokens,
            effective_sample_size=compared.effective_sample_size,
        )
