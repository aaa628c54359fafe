"""Gradient rank: the process of one accelerator of a loaned machine.

The ranks of a machine share its model (FSDP). Each holds a shard of the published weights, read slice by slice from the
relay's segment, and raw sums in full precision. A layer is gathered and computed as in the trainer. Its gradient is
reduced over the machine's accelerators row by row. The result is added to the sums and freed before the next layer's
gradient arrives. So no rank holds a second gradient.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import FileStore
from torch.distributed.tensor import DTensor

from rljob_runtime.protocols import RelayMember
from rljob_runtime.relay.gradient_transfer import GradientSender, GradientSenderSettings
from rljob_runtime.rollout.engines.weights import WeightMismatch, open_version
from rljob_runtime.training.algorithm.sums import LossSums
from rljob_runtime.training.batch.rows import Share
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.loading import empty_sharded_model
from rljob_runtime.training.model.memory import recomputes_activations
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.sharding import RankGroup, join_gather
from rljob_runtime.training.step.gradients import GradientComputer

ON_THIS_MACHINE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Network interfaces of the collectives. All ranks of a worker are on one machine, so no other machine can reach their
sockets."""


@dataclass(frozen=True)
class GradientWorkerSettings:
    """Settings of a gradient worker.

    `ranks` is the number of accelerators of the machine; each belongs to one rank. `folder` holds the model's config.
    `weights` is the segment of the machine's relay. `device` is cpu, or cuda for the visible accelerators in their
    order.
    """

    training: TrainingConfig
    ranks: int
    folder: Path
    weights: Path
    sender: GradientSenderSettings
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.training.kl_coefficient > 0:
            raise ValueError("kl_coefficient is above 0: a loaned machine has no reference model")
        if self.ranks < 1:
            raise ValueError(f"ranks is {self.ranks}; it must be 1 or more")

    @property
    def stored(self) -> torch.dtype:
        """Format of the stored weights.

        The sum of a row passes through this format before it is added in full precision. The range of float16 is too
        small for sums, so float16 weights are stored in full precision.
        """
        published: torch.dtype = getattr(torch, self.training.dtype)
        return published if self.training.autocast(self.device) else self.training.compute_dtype


class GradientRank:
    """The methods that `worker` calls on each rank, `build` first.

    All ranks receive the same calls.
    """

    @staticmethod
    def warm_up() -> None:
        """Prepare to fork.

        Importing this module imports everything else. A process that forks must have one thread.
        """
        torch.set_num_threads(1)

    def build(self, settings: GradientWorkerSettings, rank: int, meeting: str) -> int:
        """Meet the other ranks at the file `meeting` and build the model without weights.

        Returns the size of its vocabulary.
        """
        os.environ.update(ON_THIS_MACHINE)
        device = settings.device
        if device == "cpu":
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // settings.ranks))
        else:
            device = f"{device}:{rank}"
            torch.cuda.set_device(device)
        config = settings.training
        self._settings = settings
        self._ranks = RankGroup(rank, settings.ranks, device=device, store=FileStore(meeting, settings.ranks))
        model = empty_sharded_model(settings.folder, settings.stored, config.compute_dtype, self._ranks)
        autocast = config.autocast(device)
        policy = Policy(model, temperature=config.temperature, autocast=autocast, dtype=config.compute_dtype)
        if recomputes_activations(settings.device, settings.ranks):
            policy.enable_checkpointing()
        self._computer = _GradientAccumulator(policy, config, self._ranks)
        self._version: int | None = None
        return policy.vocabulary

    def begin(self, version: int) -> None:
        """Reset the sums and load the published weights `version`.

        Raises `VersionUnavailable` and `WeightMismatch`.
        """
        if self._version != version:
            self._version = None
            self._read(version)
            self._version = version
        self._computer.reset()

    def add(self, share: Share) -> dict[str, Any]:
        """Add the raw gradient of these rows and return the fields of this rank's `LossSums`.

        A collective.
        """
        return self._computer.add(share).to_dict()

    def deliver(self, term: int, number: int, inbox: RelayMember) -> int:
        """Deliver the sums of all ranks to the trainer's inbox and return the number of bytes.

        The first rank sends. Raises `Refused`.
        """
        sums = self._computer.sums
        if self._ranks.leads:
            return GradientSender(self._settings.sender).deliver(term, number, sums, inbox)
        join_gather(sums)
        return 0

    def close(self) -> None:
        """Leave the rank group."""
        self._ranks.close()

    @torch.no_grad()
    def _read(self, version: int) -> None:
        """Read this rank's slices of the weights."""
        tensors = dict(open_version(self._settings.weights, version))
        parameters = self._computer.parameters
        if tensors.keys() != parameters.keys():
            different = min(tensors.keys() ^ parameters.keys())
            raise WeightMismatch(f"version {version} and the model differ in {different}")
        for name, parameter in parameters.items():
            full = tensors[name]
            if full.shape != parameter.shape:
                raise WeightMismatch(
                    f"version {version} has {name} {list(full.shape)}; {list(parameter.shape)} is right"
                )
            slices = full.chunk(self._ranks.size)
            own = slices[self._ranks.rank] if self._ranks.rank < len(slices) else full[:0]
            _local_shard(parameter).copy_(own)


class _GradientAccumulator(GradientComputer):
    """Adds the gradient of each layer to the sums and frees it."""

    def __init__(self, policy: Policy, config: TrainingConfig, ranks: RankGroup) -> None:
        super().__init__(policy, config, ranks=ranks)
        self.parameters = dict(policy.model.named_parameters())
        self.sums: dict[str, Tensor] = {}
        self._accumulated: set[str] = set()
        for name, parameter in self.parameters.items():
            self._accumulate_on_backward(name, parameter)

    def reset(self) -> None:
        """Reset all sums to 0."""
        self.sums = {
            name: torch.zeros_like(parameter, dtype=self.config.compute_dtype, requires_grad=False)
            for name, parameter in self.parameters.items()
        }

    def add(self, share: Share) -> LossSums:
        """Add the raw gradient of these rows."""
        sums = LossSums()
        for batch in self._rows(share):
            self._accumulated.clear()
            sums = sums + self._backward(batch, None)
            if missing := self.parameters.keys() - self._accumulated:
                raise ValueError(f"parameter {min(missing)} got no gradient")
        return sums

    def _accumulate_on_backward(self, name: str, parameter: nn.Parameter) -> None:
        @torch.no_grad()
        def accumulate(parameter: Tensor) -> None:
            assert parameter.grad is not None, "called when there is one"
            _local_shard(self.sums[name]).add_(_local_shard(parameter.grad))
            parameter.grad = None
            self._accumulated.add(name)

        parameter.register_post_accumulate_grad_hook(accumulate)


def _local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard."""
    assert isinstance(tensor, DTensor), "a unit's tensors are split, also over one rank"
    return tensor.to_local()
