"""A group of ranks, of the trainer or of a loaned machine: who takes part, how weights are split, and the few
collectives that training needs.

Without a rendezvous nothing is distributed. With one, `fully_shard` (FSDP2) splits every parameter over the ranks;
gradients are reduced as plain sums, because contributions are raw sums. Collectives run over gloo on CPUs and NCCL on
GPUs. All ranks must make the same calls in the same order; a rank that dies makes the others' collectives fail, and
the group is started anew from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from rljob_runtime.training.algorithm.loss import Sums
from rljob_runtime.training.model.optimizer import whole

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Longest wait in a collective: above the longest difference in work between ranks."""


def open_rendezvous(host: str, size: int) -> TCPStore:
    """The meeting point of a new group, on a free port of `host`: rank 0 opens it and keeps it; others join
    `store.port`."""
    return TCPStore(host, 0, size, is_master=True, wait_for_workers=False, timeout=COLLECTIVE_TIMEOUT)


class RankGroup:
    """This rank among `size`. A group of one needs no `store`; with one its parameters are split all the same."""

    def __init__(self, rank: int = 0, size: int = 1, *, device: str = "cpu", store: Store | None = None):
        self.rank = rank
        self.size = size
        self.device = torch.device(device)
        self.mesh: DeviceMesh | None = None
        if size > 1 and store is None:
            raise ValueError(f"rank {rank} of {size} needs the rendezvous of rank 0")
        if store is not None:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)
            self.mesh = init_device_mesh(self.device.type, (size,))

    @classmethod
    def join(cls, host: str, port: int, rank: int, size: int, *, device: str = "cpu") -> RankGroup:
        """Join the rendezvous that rank 0 opened at `host`:`port`. Raises `RuntimeError` when it cannot be reached."""
        store = TCPStore(host, port, size, is_master=False, timeout=COLLECTIVE_TIMEOUT)
        return cls(rank, size, device=device, store=store)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0: the one that writes files and talks to the outside."""
        return self.rank == 0

    def shard(self, model: PreTrainedModel, compute_dtype: torch.dtype | None = None) -> None:
        """Split the parameters of `model` over the ranks, layer by layer, in place. A layer that is made whole, and its
        gradient on the way to the ranks, are in `compute_dtype`, or as the parameters are."""
        if self.mesh is None:
            return
        # Inputs of layers are the model's own business.
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, cast_forward_inputs=False)
        for module in [*layers_of(model), model]:
            fully_shard(module, mesh=self.mesh, mp_policy=policy)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
        model.register_forward_hook(_split_again)

    def sum(self, sums: Sums) -> Sums:
        """The sums of all ranks together."""
        if self.mesh is None:
            return sums
        values = torch.tensor(sums.values(), dtype=torch.float64, device=self.device)
        dist.all_reduce(values)
        return Sums.of(values.tolist())

    def gather_bytes(self, blob: bytes) -> list[bytes]:
        """Every rank's `blob`, by rank."""
        if self.mesh is None:
            return [blob]
        lengths = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        lengths[self.rank] = len(blob)
        dist.all_reduce(lengths)
        padded = torch.zeros(int(lengths.max()), dtype=torch.uint8, device=self.device)
        padded[: len(blob)] = torch.frombuffer(bytearray(blob) or bytearray(1), dtype=torch.uint8)[: len(blob)]
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(gathered, padded)
        return [bytes(row[:length].cpu().numpy()) for row, length in zip(gathered, lengths.tolist(), strict=True)]

    def broadcast_bytes(self, blob: bytes | None) -> bytes:
        """Rank 0's `blob`, on every rank."""
        return self.gather_bytes(blob or b"")[0]

    def place(self, target: Tensor, value: Tensor | None) -> None:
        """Copy rank 0's whole `value` into `target`, sharded as `target` is. Other ranks pass None."""
        with torch.no_grad():
            if not isinstance(target, DTensor):
                assert value is not None, "only sharded tensors are fed by another rank"
                target.copy_(value)
                return
            source = torch.empty(target.shape, dtype=target.dtype, device=self.device) if value is None else value
            target.copy_(distribute_tensor(source.to(self.device, target.dtype), target.device_mesh, target.placements))

    def close(self) -> None:
        """Leave the group. Idempotent."""
        if self.mesh is not None and dist.is_initialized():
            dist.destroy_process_group()
        self.mesh = None


def _split_again(model: nn.Module, inputs: Any, output: Any) -> None:
    """FSDP leaves what is outside of layers whole after a forward pass, for the backward pass that is to come. Where
    none comes, whoever asks for the model's parameters next must find shards."""
    if not torch.is_grad_enabled() and isinstance(model, FSDPModule):
        model.reshard()


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The decoder layers: the longest list of modules of the model."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def gathered(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor made whole, one after the other: all ranks must walk through all of it."""
    for name, tensor in named:
        yield name, whole(tensor.detach())


def walk_through(tensors: Mapping[str, Tensor]) -> None:
    """Take part in a walk through `tensors` that rank 0 makes something of."""
    drain(gathered(tensors.items()))


def drain(walk: Iterator[tuple[str, Tensor]]) -> None:
    """Take part in the rest of a collective walk."""
    for _ in walk:
        pass
