"""Gradient worker: computes gradients on a loaned rollout machine (RollPacker, section 4.4).

Every command is idempotent. Gradients do not pass through the coordinator: a worker sends its sums to the trainer over
the relay's transport, in chunks with checksums. The coordinator receives a receipt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rljob_runtime.protocols.relay import RelayMember
from rljob_runtime.protocols.trajectory import Group, PromptKey


@dataclass(frozen=True)
class ComputeReport:
    """The result of one computation.

    `groups`: groups of the step whose sums the worker holds. `tokens`: loss tokens that this call computed, in
    `seconds`, with the loading of weights. `shares`: these tokens by accelerator.
    """

    step: int
    groups: int
    tokens: int
    seconds: float
    shares: tuple[int, ...] = ()


@dataclass(frozen=True)
class ContributionReceipt:
    """A contribution that lies in the trainer's gradient inbox as version `number`.

    It holds raw sums over `groups` of `step`, computed with the published weights `version`. `sums`: the fields of
    `training.algorithm.sums.LossSums`, by name. `tokens`: the loss tokens among them.
    """

    step: int
    worker: str
    term: int
    version: int
    number: int
    groups: tuple[PromptKey, ...]
    tokens: int
    nbytes: int
    sums: Mapping[str, Any] = field(default_factory=dict)


class GradientWorker(Protocol):
    """Computes raw gradient sums on one rollout machine, for one step at a time."""

    name: str

    async def compute(self, term: int, step: int, version: int, groups: Sequence[Group]) -> ComputeReport:
        """Add the raw sums of these groups, with the weights `version` from the machine's relay.

        Idempotent by (step, group). Sums of another step, version or term are dropped first. Raises `WrongVersion` if
        the relay does not hold that version completely, and `Refused` for groups that cannot be trained on.
        """
        ...

    async def deliver(self, term: int, step: int, number: int, inbox: RelayMember) -> ContributionReceipt:
        """Send the sums of `step` to the trainer's gradient inbox as version `number`.

        Return when the inbox holds them completely. Raises `Refused` if there are no sums, or they cannot be sent.
        """
        ...

    async def release(self, term: int) -> None:
        """End the loan: drop sums and weights. When it returns, their accelerator memory is free."""
        ...
