"""What a rollout machine that is lent to training is asked for, and what it hands over (RollPacker, section 4.4).

Every command is idempotent. Gradients themselves never pass through the coordinator: a worker sends its sums to the
trainer's inbox over the relay's transport, in chunks with checksums, and what is told here is how much there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_runtime.protocols.relay import RelayMember
from rljob_runtime.protocols.trajectory import Group, PromptKey


@dataclass(frozen=True)
class ComputeReport:
    """`groups`: how many groups of the step the worker holds the sums of. `tokens`: loss tokens that this call
    computed, in `seconds`, loading of weights included; `shares`: how many of them each accelerator did."""

    step: int
    groups: int
    tokens: int
    seconds: float
    shares: tuple[int, ...] = ()


@dataclass(frozen=True)
class ContributionReceipt:
    """A contribution that lies at the trainer's inbox as version `number`: raw sums over `groups` of `step`, computed
    with the published weights `version`. `sums` are the fields of `training.algorithm.loss.LossSums`, in order;
    `tokens` the loss tokens among them."""

    step: int
    worker: str
    term: int
    version: int
    number: int
    groups: tuple[PromptKey, ...]
    tokens: int
    nbytes: int
    sums: tuple[float, ...] = ()


class GradientWorker(Protocol):
    """Computes raw gradient sums on one rollout machine, for one step at a time."""

    name: str

    async def compute(self, term: int, step: int, version: int, groups: Sequence[Group]) -> ComputeReport:
        """Add the raw sums of these groups, with the weights `version` from the machine's relay. Idempotent by (step,
        group). Sums of another step, version or term are dropped first. Raises `WrongVersion` when the relay does not
        hold that version whole, `Refused` for groups that cannot be trained on."""
        ...

    async def deliver(self, term: int, step: int, number: int, inbox: RelayMember) -> ContributionReceipt:
        """Bring the sums of `step` to the trainer's inbox as version `number`, and return when they lie there whole.
        Raises `Refused` when it holds none, or cannot bring them."""
        ...

    async def release(self, term: int) -> None:
        """The loan is over: forget sums and weights. When it returns, all that they took of an accelerator is free."""
        ...
