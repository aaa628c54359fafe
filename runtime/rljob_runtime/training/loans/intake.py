"""What the trainer checks of a contribution that a lent machine brought, and how its sums come to the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from rljob_runtime.protocols import ContributionReceipt, Refused, RelayMember
from rljob_runtime.training.algorithm.loss import Sums
from rljob_runtime.training.model.sharding import RankGroup
from rljob_runtime.training.step.contribution import Contribution


class ContributionInboxes(Protocol):
    """Where contributions of lent machines come in: `rljob_runtime.relay.gradient_transfer.GradientInboxes`."""

    def open(self, step: int, count: int) -> tuple[RelayMember, ...]:
        """Listen for so many contributions to this step, and for none before. Raises `Refused` when it cannot."""
        ...

    def read(self, number: int) -> dict[str, Tensor]:
        """The sums that lie there under this number, by parameter name. Raises `Refused`."""
        ...

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        ...


def check_standing(handover: ContributionReceipt, term: int, done: int, published: tuple[int, int] | None) -> None:
    """Raise `Refused` unless it is of this term, of the step after `done`, and computed with the weights in hand:
    `published` is the (version, step) that was published last."""
    if handover.step != done + 1:
        raise Refused(f"a contribution to step {handover.step}: step {done} is done, so {done + 1} is next")
    if handover.term != term:
        raise Refused(f"a contribution of term {handover.term}: term {term} is in office")
    if published != (handover.version, done):
        was = (
            "none was published"
            if published is None
            else f"version {published[0]} of step {published[1]} was published"
        )
        raise Refused(f"{handover.worker} computed with version {handover.version} for step {handover.step}: {was}")


def read_whole(
    inboxes: ContributionInboxes | None, handover: ContributionReceipt, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The sums at their inbox. Raises `Refused` for ones that are not of this model, or not finite: a sum that is added
    cannot be taken out again."""
    if inboxes is None:
        raise Refused(f"contribution {handover.number} is expected; no inbox was opened")
    sums = inboxes.read(handover.number)
    if sums.keys() != parameters.keys():
        raise Refused(f"{handover.worker}: its sums and the model differ in {min(sums.keys() ^ parameters.keys())}")
    for name, tensor in sums.items():
        if tensor.shape != parameters[name].shape or tensor.dtype != parameters[name].dtype:
            raise Refused(
                f"{handover.worker}: the sum of {name} is {tensor.dtype} {list(tensor.shape)}; "
                f"{parameters[name].dtype} {list(parameters[name].shape)} is right"
            )
        if not bool(tensor.isfinite().all()):
            raise Refused(f"{handover.worker}: the sum of {name} is not finite")
    return sums


def contribution_of(
    handover: ContributionReceipt, whole: Mapping[str, Tensor], parameters: Mapping[str, Tensor], ranks: RankGroup
) -> Contribution:
    """The contribution as this rank keeps it: its shard of rank 0's `whole` sums. A collective."""
    gradients = {}
    for name, parameter in parameters.items():
        gradients[name] = torch.empty_like(parameter, requires_grad=False)
        ranks.place(gradients[name], whole.get(name))
    return Contribution(
        step=handover.step,
        worker=handover.worker,
        term=handover.term,
        groups=frozenset(handover.groups),
        gradients=gradients,
        sums=Sums.of(list(handover.figures)),
    )
