"""Tensors: torch tensors into and out of the flat buffer of a version."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import torch

from rljob_runtime.relay.manifest import Manifest

NamedTensors = Iterable[tuple[str, torch.Tensor]]
Description = tuple[str, str, tuple[int, ...]]
"""(name, dtype, shape) of a tensor."""

STAGED_BYTES = 64 << 20
"""Size of each of the two buffers through which weights leave a GPU."""


def published_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the published type: `dtype` for floating-point tensors, the tensor's own type for others."""
    return dtype if tensor.dtype.is_floating_point else tensor.dtype


def describe(tensors: NamedTensors, dtype: torch.dtype) -> list[Description]:
    """Return (name, dtype, shape) of each tensor as it will be published: the input of `manifest.layout`."""
    return [(name, dtype_name(published_dtype(tensor, dtype)), tuple(tensor.shape)) for name, tensor in tensors]


def gather(tensors: NamedTensors, manifest: Manifest, buffer: memoryview) -> None:
    """Copy `tensors` into `buffer` as `manifest` lays them out, in one pass that casts, gathers and zeroes the gaps.

    Tensors must come in the manifest's order with its names and shapes (ValueError otherwise). A sharded tensor
    (torch's DTensor) is gathered first, which is a collective: its other ranks must do the same in the same order.
    """
    flat = torch.frombuffer(buffer, dtype=torch.uint8) if len(buffer) else torch.empty(0, dtype=torch.uint8)
    staging: _Staging | None = None
    end = 0
    for (name, tensor), entry in zip(tensors, manifest.tensors, strict=True):
        if name != entry.name or tuple(tensor.shape) != entry.shape:
            right = f"{entry.name} {list(entry.shape)}"
            raise ValueError(f"tensor {name} {list(tensor.shape)}: the layout has {right} in its place")
        flat[end : entry.offset].zero_()
        end = entry.offset + entry.nbytes
        full, dtype = _gathered(tensor).detach(), torch_dtype(entry.dtype)
        if full.is_cuda:
            staging = staging or _Staging()
            staging.fetch(full.to(dtype), flat[entry.offset : end])
        else:
            flat[entry.offset : end].view(dtype).view(entry.shape).copy_(full)
    if staging is not None:
        staging.settle()
    flat[end:].zero_()


class _Staging:
    """Copies out of a GPU through two page-locked buffers: while one is filled, the other is emptied.

    A copy directly to ordinary memory has a tenth of the speed, and the GPU casts faster than the CPU.
    """

    def __init__(self) -> None:
        self._buffers = [torch.empty(STAGED_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._filled: list[tuple[torch.cuda.Event, torch.Tensor] | None] = [None, None]
        self._next = 0

    def fetch(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy the bytes of `source` into `target`; complete when `settle` returns."""
        raw = source.contiguous().view(-1).view(torch.uint8)
        for piece, place in zip(raw.split(STAGED_BYTES), target.split(STAGED_BYTES), strict=True):
            self._empty(self._next)
            self._buffers[self._next][: len(piece)].copy_(piece, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
            self._filled[self._next] = arrived, place
            self._next = 1 - self._next

    def settle(self) -> None:
        """Wait until all fetched bytes are in place."""
        for index in (self._next, 1 - self._next):
            self._empty(index)

    def _empty(self, index: int) -> None:
        filled, self._filled[index] = self._filled[index], None
        if filled is not None:
            arrived, place = filled
            arrived.synchronize()
            place.copy_(self._buffers[index][: len(place)])


def views(manifest: Manifest, buffer: memoryview) -> Iterator[tuple[str, torch.Tensor]]:
    """Return (name, tensor) of each tensor of a version, sharing the buffer's memory.

    A tensor keeps the version pinned.
    """
    for entry in manifest.tensors:
        dtype = torch_dtype(entry.dtype)
        if entry.nbytes == 0:
            yield entry.name, torch.empty(entry.shape, dtype=dtype)
            continue
        count = entry.nbytes // dtype.itemsize
        yield entry.name, torch.frombuffer(buffer, dtype=dtype, count=count, offset=entry.offset).view(entry.shape)


def dtype_name(dtype: torch.dtype) -> str:
    """Return `bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """Return torch.bfloat16 for `bfloat16`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    # Its module takes half a second to import. It is there in a process that has such a tensor, and not in an engine's.
    sharded = sys.modules.get("torch.distributed.tensor")
    if sharded is None or not isinstance(tensor, sharded.DTensor):
        return tensor
    gathered: torch.Tensor = tensor.full_tensor()
    return gathered
