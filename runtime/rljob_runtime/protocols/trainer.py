"""The trainer group: gradients of finished groups, updates, weights, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_runtime.protocols.gradient_worker import ContributionReceipt
from rljob_runtime.protocols.relay import Chain, RelayMember
from rljob_runtime.protocols.trajectory import Group


@dataclass(frozen=True)
class TrainerState:
    """After start or restore: `step` updates are done, and the weights in hand are those after `step`."""

    step: int
    restored_from: str | None
    parameters: int
    model_files: dict[str, bytes]
    """config.json, tokenizer files, generation_config.json by name: what a replica needs besides the weights."""
    kept: int
    """The step at which a trainer that is started anew begins: the newest whole checkpoint's, 0 without one."""
    standing: str | None = None
    """What `checkpoint` was given for `kept`; None where it was nothing, or before there were such documents."""


@dataclass(frozen=True)
class TrainReport:
    """Figures of one update, means over the round's loss tokens unless said otherwise."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    mismatch_kl: float
    clip_fraction: float
    entropy: float
    tokens: int
    seconds: float
    early_groups: int = 0
    """Groups whose gradients were there already, by `contribute`."""
    capped_fraction: float = 0.0
    """Share of the tokens whose importance weight was cut (`algorithm.truncatedImportanceSampling.cap`)."""
    effective_sample_size: float = 1.0
    """Of the importance ratios before the cut, as a share of the tokens: near 1 while sampler and trainer agree."""


@dataclass(frozen=True)
class ContributeReport:
    """`groups`: how many groups of the step are in now, 0 when the step is done. `tokens`: loss tokens that this call
    computed, in `seconds`; what was in already is not computed again."""

    step: int
    groups: int
    seconds: float
    tokens: int = 0


@dataclass(frozen=True)
class PublishReport:
    """`stall_seconds`: how long training stood still for the copy into the host buffer."""

    version: int
    nbytes: int
    stall_seconds: float


class Trainer(Protocol):
    """The group of trainer ranks, as one."""

    async def start(self, term: int) -> TrainerState:
        """Load the model or the newest whole checkpoint. Idempotent."""
        ...

    async def contribute(self, term: int, step: int, groups: Sequence[Group]) -> ContributeReport:
        """Compute the raw gradient sums of finished groups of the next step, for `train` to begin with. Idempotent by
        (step, group), also when the step is done; lost with the trainer. Raises `Refused` when `step` is neither the
        last nor the next, or a step has several updates."""
        ...

    async def open_gradient_inboxes(self, term: int, count: int) -> tuple[RelayMember, ...]:
        """Where so many lent machines bring the sums of the next step, each its own, as contribution 1, 2, …; empty,
        and open until its update."""
        ...

    async def accept(self, term: int, receipt: ContributionReceipt, groups: Sequence[Group]) -> ContributeReport:
        """Add what a lent machine brought, whole and once; `groups` are those that it summed. Raises `Refused`, with
        nothing changed, for another term, step or version than those in hand, and for groups that are in already."""
        ...

    async def train(self, term: int, step: int, groups: Sequence[Group]) -> TrainReport:
        """The update that leads from `step - 1` to `step`. `groups` are all of the step's: those contributed before
        are not computed again, unless one of them is not named or has other contents; then none of them counts.
        Idempotent by step: a step already done answers its report again. Raises `Refused` when `step` is not the
        next."""
        ...

    async def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        """Copy the weights after `step` into the host buffer, return, and ship them to the chain's master in the
        background. Publishing a version again re-ships it to the chain now given. Raises `Refused` when other weights
        are in hand: a call that waited for an update must not give them an older number."""
        ...

    async def checkpoint(self, term: int, step: int, standing: str) -> str:
        """Write everything of this step atomically, and with it the coordinator's own document, which comes back in
        `TrainerState`; returns the checkpoint's folder name. Raises `Refused` (disk full, another step) with the
        previous checkpoint untouched."""
        ...

    async def export(self, term: int) -> str:
        """Write the final model as a Hugging Face folder; returns its path."""
        ...
