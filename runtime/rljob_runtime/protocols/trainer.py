"""Trainer group: gradients, updates, published weights, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rljob_runtime.protocols.gradient_worker import ContributionReceipt
from rljob_runtime.protocols.relay import Chain, RelayMember
from rljob_runtime.protocols.trajectory import Group


@dataclass(frozen=True)
class TrainerState:
    """The trainer after start or restore: it has done `step` updates and holds the weights after them."""

    step: int
    restored_from: str | None
    parameters: int
    model_files: dict[str, bytes]
    """Files that a replica needs besides weights, by name: config.json, tokenizer files, generation_config.json."""
    kept: int
    """The step of the newest complete checkpoint, at which a new trainer starts; 0 without one."""
    coordinator_snapshot: str | None = None
    """The coordinator's snapshot in the checkpoint of `kept`; None if it has none."""


@dataclass(frozen=True)
class TrainReport:
    """Metrics of one update: means over the round's loss tokens unless stated otherwise."""

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
    """Groups whose gradients `contribute` computed before the update."""
    capped_fraction: float = 0.0
    """Share of the tokens whose importance weight was capped (`algorithm.truncatedImportanceSampling.cap`)."""
    effective_sample_size: float = 1.0
    """Effective sample size of the uncapped importance ratios, as a share of the tokens; near 1 if engine and trainer
    agree."""
    reference_kl: float | None = None
    """KL divergence from the initial model; None without klCoefficient."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the loss function, by name."""


@dataclass(frozen=True)
class ContributeReport:
    """The result of one contribution.

    `groups`: groups of the step whose gradients the trainer holds; 0 if the step is done. `tokens`: loss tokens that
    this call computed, in `seconds`; groups that it held before do not count.
    """

    step: int
    groups: int
    seconds: float
    tokens: int = 0


@dataclass(frozen=True)
class PublishReport:
    """The result of a publication. `stall_seconds`: time for which the copy into the host buffer stopped training."""

    version: int
    nbytes: int
    stall_seconds: float


class Trainer(Protocol):
    """The group of trainer ranks, as one peer."""

    async def start(self, term: int) -> TrainerState:
        """Load the model or the newest complete checkpoint. Idempotent."""
        ...

    async def contribute(self, term: int, step: int, groups: Sequence[Group]) -> ContributeReport:
        """Compute the raw gradient sums of complete groups of the next step, before its `train`.

        Idempotent by (step, group), also when the step is done. The sums are lost with the trainer. Raises `Refused`
        if `step` is neither the last nor the next, or a step has several updates.
        """
        ...

    async def open_gradient_inboxes(self, term: int, count: int) -> tuple[RelayMember, ...]:
        """Open gradient inboxes for the sums of the next step: one for each of `count` loaned machines.

        Contributions are numbered from 1. The inboxes are empty, and close at the update.
        """
        ...

    async def accept(self, term: int, receipt: ContributionReceipt, groups: Sequence[Group]) -> ContributeReport:
        """Add a loaned machine's contribution completely and once; `groups` are the groups that it summed.

        Raises `Refused`, with nothing changed, for another term, step or version than the current ones, and for groups
        that are already added.
        """
        ...

    async def train(self, term: int, step: int, groups: Sequence[Group]) -> TrainReport:
        """Run the update from `step - 1` to `step` with all groups of the step.

        Contributed groups are not computed again. If one of them is missing or differs, all contributions are dropped.
        Idempotent by step: for a step that is done it returns the same report. Raises `Refused` if `step` is not the
        next.
        """
        ...

    async def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        """Copy the weights after `step` into the host buffer, return, and send them to the chain's master.

        The transfer runs in the background. Publishing a version again sends it to the chain given now. Raises
        `Refused` if the trainer holds other weights: a delayed call must not give them an older version.
        """
        ...

    async def checkpoint(self, term: int, step: int, coordinator_snapshot: str) -> str:
        """Write a checkpoint of this step atomically; return its folder name.

        It contains the coordinator's snapshot, which `TrainerState` returns. Raises `VolumeFull`, and `Refused`
        (another step, a disk that fails), and leaves the previous checkpoint unchanged.
        """
        ...

    async def export(self, term: int) -> str:
        """Write the final model as a Hugging Face folder; return its path."""
        ...

    async def save_model(self, term: int, step: int) -> tuple[int, ...]:
        """Write the weights of this step as a model, until it is known whether they are the best.

        Returns the steps that have one. Raises `Refused` (disk full, another step).
        """
        ...

    async def retain_models(self, term: int, keep: Sequence[int] | None) -> tuple[int, ...]:
        """Delete these models except those of the steps to keep; None keeps all. Returns the steps that have one.

        A model that cannot be deleted stays. Raises `Refused` if the volume cannot be read.
        """
        ...

    async def export_best(self, term: int, step: int) -> str:
        """Make the model of this step the best one, beside the final model; return its path. Raises `Refused`."""
        ...
