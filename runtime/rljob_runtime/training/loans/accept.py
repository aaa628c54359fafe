"""Acceptance of contributions: checks the sums of a loaned machine and scatters them over the trainer's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from rljob_runtime.protocols import ContributionReceipt, Refused, RelayMember
from rljob_runtime.training.algorithm.sums import LossSums
from rljob_runtime.training.model.sharding import RankGroup
from rljob_runtime.training.step.contribution import Contribution


class ContributionInboxes(Protocol):
    """Receives the sums of loaned machines.

    Implemented by `rljob_runtime.relay.gradient_transfer`.
    """

    def open(self, step: int, count: int) -> tuple[RelayMember, ...]:
        """Listen for `count` contributions to this step, and drop those of earlier steps.

        Raises `Refused` when it cannot listen.
        """
        ...

    def read(self, number: int) -> dict[str, Tensor]:
        """Return the sums of contribution `number`, by parameter name.

        Raises `Refused`.
        """
        ...

    def close(self) -> None:
        """Free the memory.

        Idempotent.
        """
        ...


def check_fence(receipt: ContributionReceipt, term: int, done: int, published: tuple[int, int] | None) -> None:
    """Raise `Refused` unless the contribution belongs to this term, the next step and the current weights.

    `done` is the last completed step. `published` is the (version, step) of the last publication.
    """
    if receipt.step != done + 1:
        raise Refused(f"a contribution to step {receipt.step}: step {done} is done, so {done + 1} is next")
    if receipt.term != term:
        raise Refused(f"a contribution of term {receipt.term}: the current term is {term}")
    if published != (receipt.version, done):
        was = (
            "none was published"
            if published is None
            else f"version {published[0]} of step {published[1]} was published"
        )
        raise Refused(f"{receipt.worker} computed with version {receipt.version} for step {receipt.step}: {was}")


def read_sums(
    inboxes: ContributionInboxes | None, receipt: ContributionReceipt, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Read the sums of a contribution.

    A sum that was added cannot be removed. So sums of another model and sums that are not finite raise `Refused`.
    """
    if inboxes is None:
        raise Refused(f"contribution {receipt.number} is expected; no inbox is open")
    sums = inboxes.read(receipt.number)
    if sums.keys() != parameters.keys():
        raise Refused(f"{receipt.worker}: its sums and the model differ in {min(sums.keys() ^ parameters.keys())}")
    for name, tensor in sums.items():
        if tensor.shape != parameters[name].shape or tensor.dtype != parameters[name].dtype:
            raise Refused(
                f"{receipt.worker}: the sum of {name} is {tensor.dtype} {list(tensor.shape)}; "
                f"{parameters[name].dtype} {list(parameters[name].shape)} is right"
            )
        if not bool(tensor.isfinite().all()):
            raise Refused(f"{receipt.worker}: the sum of {name} is not finite")
    return sums


def scatter_contribution(
    receipt: ContributionReceipt, full: Mapping[str, Tensor], parameters: Mapping[str, Tensor], ranks: RankGroup
) -> Contribution:
    """Return this rank's shard of the `full` sums on rank 0.

    A collective.
    """
    gradients = {}
    for name, parameter in parameters.items():
        gradients[name] = torch.empty_like(parameter, requires_grad=False)
        ranks.scatter_into(gradients[name], full.get(name))
    return Contribution(
        step=receipt.step,
        worker=receipt.worker,
        term=receipt.term,
        groups=frozenset(receipt.groups),
        gradients=gradients,
        sums=LossSums.of(receipt.sums),
    )
