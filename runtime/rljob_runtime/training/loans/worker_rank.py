"""One rank of a gradient unit: the process of one accelerator of a loaned machine.

The ranks of a machine hold its model split among them (FSDP): weights as they are published, read slice by slice from
the relay's segment, and raw sums in full precision. A layer is made whole and computed with as the trainer computes
with it. Its gradient is reduced over the machine's accelerators row by row; what comes of it is added to the sums and
given back before the next layer's comes, so no rank ever holds a second gradient.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor

from rljob_runtime.protocols import RelayMember
from rljob_runtime.relay.gradient_transfer import GradientSender, GradientSenderSettings
from rljob_runtime.rollout.engines.weights import WeightMismatch, open_version
from rljob_runtime.training.algorithm.loss import Sums
from rljob_runtime.training.batch.rows import Share
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.loading import without_weights
from rljob_runtime.training.model.memory import computes_again
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.sharding import RankGroup, walk_through
from rljob_runtime.training.step.gradients import GradientComputer

ON_THIS_MACHINE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""A unit's ranks are on one machine: nobody else can reach what they listen on."""


@dataclass(frozen=True)
class UnitSettings:
    """`ranks`: accelerators of the machine, each of them a rank's. `folder`: the model's config. `weights`: the segment
    of the machine's relay. `device`: cpu, or cuda for the accelerators that the ranks see, in their order."""

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
        """What weights are kept in. The sum of a row passes through it on its way to the full precision of all, so
        float16, whose range is too small for sums, is not kept as it is published."""
        published: torch.dtype = getattr(torch, self.training.dtype)
        return published if self.training.autocast else self.training.compute_dtype


class UnitRank:
    """What the leader of a unit (`worker`) asks of its ranks: `build` first. All ranks get the same calls."""

    @staticmethod
    def warm_up() -> None:
        """All is imported with this module. A process that is to be forked has one thread."""
        torch.set_num_threads(1)

    def build(self, settings: UnitSettings, rank: int, meeting: str) -> int:
        """Meet the other ranks at the file `meeting` and make the model, without weights; the size of its
        vocabulary."""
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
        model = without_weights(settings.folder, settings.stored, config.compute_dtype, self._ranks)
        policy = Policy(model, temperature=config.temperature, autocast=config.autocast, dtype=config.compute_dtype)
        if computes_again(settings.device, settings.ranks):
            policy.enable_checkpointing()
        self._computer = _Adding(policy, config, self._ranks)
        self._held: int | None = None
        return policy.vocabulary

    def begin(self, version: int) -> None:
        """Sums of nothing, with the published weights `version`. Raises `VersionUnavailable` and `WeightMismatch`."""
        if self._held != version:
            self._held = None
            self._read(version)
            self._held = version
        self._computer.forget()

    def add(self, share: Share) -> list[float]:
        """Add the raw gradient of these rows, a collective; this rank's `Sums`."""
        return self._computer.add(share).values()

    def deliver(self, term: int, number: int, inbox: RelayMember) -> int:
        """Bring the sums of all ranks to the trainer's inbox, by the first one; how many bytes. Raises `Refused`."""
        sums = self._computer.sums
        if self._ranks.leads:
            return GradientSender(self._settings.sender).deliver(term, number, sums, inbox)
        walk_through(sums)
        return 0

    def close(self) -> None:
        """Leave the others."""
        self._ranks.close()

    @torch.no_grad()
    def _read(self, version: int) -> None:
        """This rank's slices of the weights."""
        tensors = dict(open_version(self._settings.weights, version))
        parameters = self._computer.parameters
        if tensors.keys() != parameters.keys():
            strange = min(tensors.keys() ^ parameters.keys())
            raise WeightMismatch(f"version {version} and the model differ in {strange}")
        for name, parameter in parameters.items():
            whole = tensors[name]
            if whole.shape != parameter.shape:
                raise WeightMismatch(
                    f"version {version} has {name} {list(whole.shape)}; {list(parameter.shape)} is right"
                )
            slices = whole.chunk(self._ranks.size)
            own = slices[self._ranks.rank] if self._ranks.rank < len(slices) else whole[:0]
            _local(parameter).copy_(own)


class _Adding(GradientComputer):
    """Adds what each layer's gradient comes to, and gives it back."""

    def __init__(self, policy: Policy, config: TrainingConfig, ranks: RankGroup) -> None:
        super().__init__(policy, config, ranks=ranks)
        self.parameters = dict(policy.model.named_parameters())
        self.sums: dict[str, Tensor] = {}
        self._seen: set[str] = set()
        for name, parameter in self.parameters.items():
            self._watch(name, parameter)

    def forget(self) -> None:
        """All sums are 0."""
        self.sums = {
            name: torch.zeros_like(parameter, dtype=self.config.compute_dtype, requires_grad=False)
            for name, parameter in self.parameters.items()
        }

    def add(self, share: Share) -> Sums:
        """Of these rows."""
        sums = Sums()
        for batch in self._rows(share):
            self._seen.clear()
            sums = sums + self._backward(batch, None)
            if missing := self.parameters.keys() - self._seen:
                raise ValueError(f"parameter {min(missing)} got no gradient")
        return sums

    def _watch(self, name: str, parameter: nn.Parameter) -> None:
        @torch.no_grad()
        def take(parameter: Tensor) -> None:
            assert parameter.grad is not None, "called when there is one"
            _local(self.sums[name]).add_(_local(parameter.grad))
            parameter.grad = None
            self._seen.add(name)

        parameter.register_post_accumulate_grad_hook(take)


def _local(tensor: Tensor) -> Tensor:
    """This rank's part."""
    assert isinstance(tensor, DTensor), "a unit's tensors are split, also over one rank"
    return tensor.to_local()
