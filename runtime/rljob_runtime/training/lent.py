"""The gradient worker of a lent rollout machine: published weights in, raw gradient sums out (RollPacker, section 4.4).

It has no optimizer, no gradient synchronisation and no memory beyond a step. Its weights are those that the machine's
relay holds, rounded as they are published, so that what it sums is what the trainer would have summed.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from rljob_runtime.coordinator.protocols import ComputeReport, Handover, Refused, RelayMember, StaleTerm, WrongVersion
from rljob_runtime.rollout.weights import VersionUnavailable, open_version
from rljob_runtime.scheduling.trajectory import Group
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.delivery import Progress, for_contribute
from rljob_runtime.training.early import EarlySums
from rljob_runtime.training.gradients import GradientComputer
from rljob_runtime.training.model import Policy, empty_model

log = logging.getLogger(__name__)


class SumsCourier(Protocol):
    """How sums leave the machine: `rljob_runtime.relay.sums.Courier`."""

    def deliver(self, term: int, number: int, tensors: Mapping[str, Tensor], desk: RelayMember) -> int:
        """Bring them to the desk whole; how many bytes."""
        ...

    def unwanted(self) -> AbstractContextManager[None]:
        """Nothing is delivered meanwhile, and a delivery under way ends."""
        ...


@dataclass(frozen=True)
class LentSettings:
    """`folder`: the model's config. `weights`: the segment of the machine's relay."""

    training: TrainingConfig
    folder: Path
    weights: Path
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.training.kl_coefficient > 0:
            raise ValueError("kl_coefficient is above 0: a lent machine has no reference model")


@dataclass(frozen=True)
class _Task:
    """What sums are of: nothing of one task serves another."""

    term: int
    step: int
    version: int


class LentWorker:
    """`protocols.GradientWorker`, plain and blocking, one call at a time. Raises only the protocol's errors."""

    def __init__(self, name: str, settings: LentSettings, make_courier: Callable[[], SumsCourier]) -> None:
        self.name = name
        self._settings = settings
        self._courier = make_courier()
        self._term = 0
        self._task: _Task | None = None
        self._sums: EarlySums | None = None
        self._loaded: int | None = None
        self._computer: GradientComputer | None = None

    def compute(self, term: int, step: int, version: int, groups: Sequence[Group]) -> ComputeReport:
        """See `GradientWorker.compute`."""
        self._check(term)
        began, task = time.monotonic(), _Task(term, step, version)
        if task != self._task:
            self._task, self._sums = task, None
        computer = self._with_weights(version)
        held, tokens = self._sums, 0
        progress = Progress(step - 1, held.groups if held else {}, computer.config.row_rules)
        try:
            delivery, ((share,),) = for_contribute(progress, step, groups, 1)
            computer.check_tokens(delivery.groups)
        except ValueError as error:
            raise Refused(f"{self.name}: {error}") from error
        if not delivery.keeps:
            raise Refused(f"{self.name}: a group of step {step} comes again with other contents")
        if fresh := delivery.groups:
            contribution = computer.contribute(step, fresh, share, term=term)
            tokens = contribution.sums.tokens
            held = self._sums = held.plus(fresh, contribution) if held else EarlySums.of(fresh, contribution)
        assert held is not None, "no groups are no delivery"
        return ComputeReport(step, len(held.groups), tokens, time.monotonic() - began)

    def hand_over(self, term: int, step: int, number: int, desk: RelayMember) -> Handover:
        """See `GradientWorker.hand_over`. What was handed over stays until the next task: a repetition is the same."""
        self._check(term)
        task, held = self._task, self._sums
        if task is None or held is None or (task.term, task.step) != (term, step):
            raise Refused(f"{self.name} holds no sums of step {step}, term {term}")
        total = held.total
        nbytes = self._courier.deliver(term, number, total.gradients, desk)
        return Handover(
            step=step,
            worker=self.name,
            term=term,
            version=task.version,
            number=number,
            groups=tuple(sorted(held.groups)),
            tokens=total.sums.tokens,
            nbytes=nbytes,
            figures=tuple(total.sums.values()),
        )

    def letting_go(self, term: int) -> AbstractContextManager[None]:
        """For as long as `release` is on its way: a delivery does not keep it waiting. From any thread."""
        return self._courier.unwanted() if term >= self._term else nullcontext()

    def release(self, term: int) -> None:
        """See `GradientWorker.release`."""
        self._check(term)
        self.close()

    def close(self) -> None:
        """Weights and sums are gone, and an accelerator's memory is free for the engines that sleep."""
        self._task = self._sums = self._computer = self._loaded = None
        if self._settings.device != "cpu":
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()

    def _check(self, term: int) -> None:
        if term < self._term:
            raise StaleTerm(f"term {term} is over: {self.name} follows term {self._term}")
        self._term = term

    def _with_weights(self, version: int) -> GradientComputer:
        """The computer with exactly the published weights of `version`. Raises `WrongVersion`, or `Refused` when they
        are not those of the model."""
        if self._computer is not None and self._loaded == version:
            return self._computer
        try:
            tensors = dict(open_version(self._settings.weights, version))
        except VersionUnavailable as error:
            raise WrongVersion(f"{self.name}: {error}") from error
        computer = self._computer or self._make_computer()
        parameters = dict(computer.policy.model.named_parameters())
        if tensors.keys() != parameters.keys():
            strange = min(tensors.keys() ^ parameters.keys())
            raise Refused(f"{self.name}: version {version} and the model differ in {strange}")
        self._loaded = None
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])
        self._computer, self._loaded = computer, version
        log.info("%s computes with version %d", self.name, version)
        return computer

    def _make_computer(self) -> GradientComputer:
        config = self._settings.training
        model = empty_model(self._settings.folder, dtype=config.compute_dtype, device=self._settings.device)
        policy = Policy(model, temperature=config.temperature, autocast=config.autocast)
        if self._settings.device != "cpu":
            policy.enable_checkpointing()
        return GradientComputer(policy, config, worker=self.name)
