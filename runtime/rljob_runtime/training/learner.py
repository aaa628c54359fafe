"""One GRPO step: groups -> raw gradient sums -> one normalised update a minibatch. Pure computation, no files, no
network but the collectives of its rank group."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from torch import Tensor

from rljob_runtime.coordinator.protocols import TrainReport
from rljob_runtime.scheduling.trajectory import Group, PromptKey
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.contribution import Contribution, combine, normalise
from rljob_runtime.training.early import EarlySums
from rljob_runtime.training.gradients import GradientComputer
from rljob_runtime.training.loss import Sums
from rljob_runtime.training.model import Policy
from rljob_runtime.training.optimizer import MasterOptimizer, Update
from rljob_runtime.training.packing import Block, minibatches
from rljob_runtime.training.sharding import RankGroup

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

    def take_early(self, step: int, groups: Sequence[Group]) -> tuple[int, int]:
        """Compute the raw gradient sums of those of `groups` that are not in yet, for `train(step)` to begin with; how
        many groups of the step are in now, and how many loss tokens were computed. Costs the memory of a second
        gradient. Raises `ValueError` for groups that cannot be trained on, and where several updates are made of a
        step: all but the first see other weights."""
        self._expect_one_update()
        blocks = self.prepare(groups)
        early = self._early_of(step)
        if early is not None and not early.agrees_with(blocks):
            log.warning("step %d: a group comes again with other contents; its early sums are dropped", step)
            early = self._early = None
        fresh, tokens = blocks if early is None else early.missing(blocks), 0
        if fresh:
            contribution = self.contribute(step, fresh)
            tokens = contribution.sums.tokens
            early = self._early = early.plus(fresh, contribution) if early else EarlySums(fresh, contribution)
        assert early is not None, "prepare refuses to have no groups"
        return len(early.blocks), tokens

    def accept(self, step: int, groups: Sequence[Group], contribution: Contribution) -> int:
        """Take the sums that another worker made of exactly these groups, whole and once: a repetition adds nothing.
        How many groups of the step are in now. Raises `ValueError`, with nothing changed, when a part of them is in
        already, for another step, and for a count of tokens or groups that is not that of the groups."""
        self._expect_one_update()
        blocks = self.prepare(groups)
        if contribution.step != step or contribution.groups != blocks.keys():
            raise ValueError(
                f"{contribution.worker} contributes {len(contribution.groups)} groups of step {contribution.step}; "
                f"{len(blocks)} of step {step} are expected"
            )
        samples = [sample for block in blocks.values() for sample in block.samples]
        # One of these two divides the whole round's gradient.
        has = contribution.sums.tokens, contribution.sums.sequences
        wanted = sum(len(sample.token_ids) for sample in samples), len(samples)
        if has != wanted:
            raise ValueError(
                f"{contribution.worker} has summed {has[0]} tokens of {has[1]} responses; its groups have "
                f"{wanted[0]} of {wanted[1]}"
            )
        early = self._early_of(step)
        if early is not None and not early.missing(blocks) and early.agrees_with(blocks):
            return len(early.blocks)
        self._early = early.plus(blocks, contribution) if early else EarlySums(blocks, contribution)
        return len(self._early.blocks)

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
        shares = [dict(share) for share in minibatches(list(blocks.items()), self.config.minibatches)]
        for share, proximal in zip(shares, self._proximal(shares), strict=True):
            total = self._total(step, share, early, proximal)
            updates.append(self.optimizer.update(normalise(total, self.config.aggregation), step))
            parts.append(total.sums)
        return self._report(step, parts, updates, len(early.blocks) if early else 0, time.monotonic() - began)

    def _expect_one_update(self) -> None:
        if self.config.minibatches > 1:
            raise ValueError(
                f"minibatches is {self.config.minibatches}: gradients can be computed early where a step is one update"
            )

    def _early_of(self, step: int) -> EarlySums | None:
        """What came early, if it is of this step: every step has weights of its own."""
        return self._early if self._early is not None and self._early.total.step == step else None

    def _proximal(self, shares: Sequence[dict[PromptKey, Block]]) -> list[list[Tensor] | None]:
        """The logprobs of each share at the start of the step, None where they are those of its own pass. To be asked
        for before the first update: the later shares see the weights after it."""
        if self.config.importance_cap is None:
            return [None for _ in shares]
        return [None, *(self.logprobs(share) for share in shares[1:])]

    def _total(
        self,
        step: int,
        blocks: dict[PromptKey, Block],
        early: EarlySums | None,
        proximal: list[Tensor] | None,
    ) -> Contribution:
        """The raw sums of `blocks`, of which `early` has a part."""
        if early is None:
            return self.contribute(step, blocks, proximal=proximal)
        missing = early.missing(blocks)
        return combine([early.total, self.contribute(step, missing)]) if missing else early.total

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
