"""Rank group: the ranks of the trainer or of a loaned machine, their shards, and the collectives of training.

Without a rendezvous nothing is distributed. With one, `fully_shard` (FSDP2) shards every parameter over the ranks.
Gradients are reduced as plain sums, because contributions are raw sums. Collectives run over gloo on CPUs and NCCL on
GPUs. All ranks must make the same calls in the same order. A rank that dies makes the others' collectives fail, and the
group restarts from its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from rljob_runtime.training.algorithm.sums import LossSums
from rljob_runtime.training.model.optimizer import gather_full

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Longest wait in a collective, above the longest difference in work between ranks."""


def open_rendezvous(host: str, size: int) -> TCPStore:
    """Open the rendezvous of a new group on a free port of `host`.

    Rank 0 opens and keeps it; others join `store.port`.
    """
    return TCPStore(host, 0, size, is_master=True, wait_for_workers=False, timeout=COLLECTIVE_TIMEOUT)


class RankGroup:
    """This rank among `size`.

    A group of one needs no `store`. With a store, its parameters are sharded all the same.
    """

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
        """Join the rendezvous that rank 0 opened at `host`:`port`.

        Raises `RuntimeError` when it cannot be reached.
        """
        store = TCPStore(host, port, size, is_master=False, timeout=COLLECTIVE_TIMEOUT)
        return cls(rank, size, device=device, store=store)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes files and communicates with other processes."""
        return self.rank == 0

    def shard(self, model: PreTrainedModel, compute_dtype: torch.dtype | None = None) -> None:
        """Shard the parameters of `model` over the ranks, layer by layer, in place.

        A gathered layer and the gradient that is reduced use `compute_dtype`, or the format of the parameters.
        """
        if self.mesh is None:
            return
        # FSDP must not cast the inputs of layers: the model decides their format.
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, cast_forward_inputs=False)
        for module in [*decoder_layers(model), model]:
            fully_shard(module, mesh=self.mesh, mp_policy=policy)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
        model.register_forward_hook(_reshard_after_forward)

    def sum(self, sums: LossSums) -> LossSums:
        """Add the sums of all ranks, in their order.

        A loss function names its metrics as it computes them, so a rank without rows knows none of the names.
        """
        everyone = [LossSums.of(json.loads(one)) for one in self.gather_bytes(json.dumps(sums.to_dict()).encode())]
        return sum(everyone[1:], everyone[0])

    def gather_bytes(self, blob: bytes) -> list[bytes]:
        """Gather every rank's `blob`, by rank."""
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
        """Send rank 0's `blob` to every rank."""
        return self.gather_bytes(blob or b"")[0]

    def scatter_into(self, target: Tensor, value: Tensor | None) -> None:
        """Copy rank 0's full `value` into `target`, sharded like `target`.

        Other ranks pass None.
        """
        with torch.no_grad():
            if not isinstance(target, DTensor):
                assert value is not None, "only sharded tensors are fed by another rank"
                target.copy_(value)
                return
            source = torch.empty(target.shape, dtype=target.dtype, device=self.device) if value is None else value
            target.copy_(distribute_tensor(source.to(self.device, target.dtype), target.device_mesh, target.placements))

    def close(self) -> None:
        """Leave the group.

        Idempotent.
        """
        if self.mesh is not None and dist.is_initialized():
            dist.destroy_process_group()
        self.mesh = None


def _reshard_after_forward(model: nn.Module, inputs: Any, output: Any) -> None:
    """Reshard after a forward pass without gradient.

    FSDP keeps weights outside of layers gathered for the backward pass. Without a backward pass, later readers of the
    parameters must find shards.
    """
    if not torch.is_grad_enabled() and isinstance(model, FSDPModule):
        model.reshard()


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the decoder layers: the longest list of modules of the model."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def gather_in_order(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield each full tensor in order.

    All ranks must iterate to the end.
    """
    for name, tensor in named:
        yield name, gather_full(tensor.detach())


def join_gather(tensors: Mapping[str, Tensor]) -> None:
    """Join rank 0's iteration over the full `tensors`."""
    finish_gather(gather_in_order(tensors.items()))


def finish_gather(walk: Iterator[tuple[str, Tensor]]) -> None:
    """Join the rest of a collective iteration."""
    for _ in walk:
        pass
