"""Gradient computer: turns rows into raw gradient sums with the current weights.

Trainer ranks and loaned machines share this code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from rljob_runtime.training.algorithm.loss import Loss, LossInput, LossOutput, policy_loss, sums_of
from rljob_runtime.training.algorithm.own import OwnLoss
from rljob_runtime.training.algorithm.sums import LossSums
from rljob_runtime.training.batch.delivery import Outline
from rljob_runtime.training.batch.rows import Share
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.packing import MicroBatch, pack_row
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.sharding import RankGroup
from rljob_runtime.training.model.token_logprobs import Entropy
from rljob_runtime.training.step.contribution import Contribution, take_gradients

TRAINER = "trainer"
"""Worker name of the trainer's own contributions."""


class GradientComputer:
    """Computes contributions with `policy` under the name `worker`.

    All ranks call the same methods with the same groups, each with its own share of the rows.
    """

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
        self._loss: Loss = OwnLoss(config.loss_function) if config.loss_function else policy_loss
        self.policy = policy
        self.config = config
        self.reference = reference
        self.ranks = ranks or RankGroup()
        self.worker = worker

    def check_tokens(self, groups: Iterable[Outline]) -> None:
        """Raise `ValueError` for a token outside the model's vocabulary."""
        highest = max((group.highest_token for group in groups), default=0)
        if highest >= self.policy.vocabulary:
            raise ValueError(f"token {highest} is outside the model's vocabulary of {self.policy.vocabulary}")

    def logprobs(self, share: Share) -> list[Tensor]:
        """Compute the current logprobs of this rank's rows, on the CPU.

        They serve later as `proximal` of `contribute`.
        """
        return [self.policy.frozen_logprobs(batch).cpu() for batch in self._rows(share)]

    def contribute(
        self,
        step: int,
        groups: Sequence[Outline],
        share: Share,
        *,
        term: int = 0,
        proximal: Sequence[Tensor] | None = None,
    ) -> Contribution:
        """Compute the raw gradient of `groups` on all ranks together.

        With several ranks the sum is sharded. `proximal` holds the `logprobs` of the same share at the start of the
        step, when the weights have changed since. Raises `ValueError` on all ranks when their rows together are not all
        of the groups.
        """
        # An interrupted computation may have left a partial gradient.
        self.policy.model.zero_grad(set_to_none=True)
        sums = LossSums()
        for number, batch in enumerate(self._rows(share)):
            start = None if proximal is None else proximal[number].to(self.policy.device)
            sums = sums + self._backward(batch, start)
        contribution = Contribution(
            step=step,
            worker=self.worker,
            term=term,
            groups=frozenset(group.prompt for group in groups),
            gradients=take_gradients(self.policy.model),
            sums=self.ranks.sum(sums),
        )
        check_counts(contribution, groups)
        return contribution

    def _rows(self, share: Share) -> Iterator[MicroBatch]:
        """Yield this rank's rows, in the same order at each call."""
        for row in share.rows():
            batch = pack_row(row, self.config.aggregation, self.config.longest_response)
            yield batch.to(self.policy.device, self.policy.dtype)

    def _backward(self, batch: MicroBatch, proximal: Tensor | None) -> LossSums:
        """Add the raw gradient of one row to the parameters' gradients."""
        reference = self.reference.frozen_logprobs(batch) if self.reference else None
        bonus = self.config.entropy_coefficient > 0 or self.config.loss_function is not None
        logprobs, entropy = self.policy.logprobs(batch, entropy=Entropy.WITH_GRADIENT if bonus else Entropy.VALUE)
        tokens = LossInput(
            logprobs=logprobs,
            behaviour=batch.behaviour,
            proximal=logprobs.detach() if proximal is None else proximal,
            reference=reference,
            entropy=entropy,
            advantages=batch.advantages,
            weights=batch.weights,
            responses=batch.responses,
            sequences=batch.sequences,
        )
        # Functions of the user never see the empty row of a rank without work.
        output = self._loss(tokens, self.config) if batch.sequences else LossOutput(logprobs.sum())
        torch.autograd.backward(output.sum)
        return sums_of(tokens, output, self.config.importance_cap)


def check_counts(contribution: Contribution, groups: Sequence[Outline]) -> None:
    """Raise `ValueError` unless the contribution counts the tokens and responses of `groups`.

    One of the two counts divides the gradient.
    """
    has = contribution.sums.tokens, contribution.sums.sequences
    expected = sum(group.tokens for group in groups), sum(group.sequences for group in groups)
    if has != expected:
        raise ValueError(
            f"{contribution.worker} has summed {has[0]} tokens of {has[1]} responses; its groups have "
            f"{expected[0]} of {expected[1]}"
        )
