"""Packed attention: each segment of a row attends to its prefix and, causally, to itself, and to nothing else.

It is registered with transformers under `NAME`. A model loaded with `attn_implementation=NAME` builds no mask and
passes the `segments` of its forward call to every layer. There is no T × T mask and no padding, so a row costs what its
sequences cost. On a GPU in half precision, one kernel computes all segments; elsewhere each segment is one call. A
layer with a sliding window passes its width; a token then attends to that many tokens, including itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rljob_runtime.training.model.packing import Segment

NAME = "rljob_packed"
NOT_COMPUTED = ("softcap", "s_aux", "position_bias", "indices", "block_indices")
"""Arguments by which layers of transformers ask for more than softmax attention. Any other argument is a hint."""
LARGEST_HEAD = 256
"""Largest head of the kernel for all segments."""


class UnsupportedModel(ValueError):
    """The model cannot be trained.

    The message names the reason.
    """


@dataclass(frozen=True)
class Segments:
    """The segments that cover a row in order, and their index tensors on `device`.

    They are built once per row, not once per layer.
    """

    parts: Sequence[Segment]
    device: torch.device

    @cached_property
    def query_ends(self) -> Tensor:
        """[segments + 1] int32: 0, then the end of each segment in the row."""
        return self._running(segment.length for segment in self.parts)

    @cached_property
    def key_ends(self) -> Tensor:
        """[segments + 1] int32: 0, then the end of each segment's keys, laid end to end."""
        return self._running(segment.prefix_length + segment.length for segment in self.parts)

    @cached_property
    def seen(self) -> Tensor:
        """Row positions of each segment's keys, laid end to end: its prefix, then itself."""
        places: list[int] = []
        for one in self.parts:
            places += range(one.prefix_start, one.prefix_start + one.prefix_length)
            places += range(one.start, one.start + one.length)
        return torch.tensor(places).to(self.device)

    @property
    def longest(self) -> tuple[int, int]:
        """Length of the longest segment, and the largest number of keys of a segment."""
        lengths = [(segment.length, segment.prefix_length + segment.length) for segment in self.parts]
        return max(length for length, _ in lengths), max(seen for _, seen in lengths)

    def _running(self, lengths: Iterable[int]) -> Tensor:
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32).to(self.device)


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Segments,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend with `query` [1, H, T, D], `key` [1, H_kv, T, D] and `value` [1, H_kv, T, D_v] to get [1, T, H, D_v].

    Raises `UnsupportedModel` for a layer that asks for more than softmax attention.
    """
    for name in NOT_COMPUTED:
        if others.get(name) is not None:
            raise UnsupportedModel(f"its attention has {name}; only softmax over keys, with or without a window, is")
    # Under autocast, the rotary embedding leaves queries and keys in fp32. A bfloat16 model rounds them.
    query, key = query.to(value.dtype), key.to(value.dtype)
    same_heads = query.shape[-1] == value.shape[-1] <= LARGEST_HEAD
    together = value.is_cuda and value.dtype.itemsize == 2 and same_heads
    attend = _varlen_attention if together else _attention_by_segment
    return attend(query, key, value, segments, scaling, sliding_window), None


def _varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float | None, window: int | None
) -> Tensor:
    """Run flash attention over sequences of different lengths.

    Key heads are repeated, because not every release of torch groups them here. They are small.
    """
    group = query.shape[1] // key.shape[1]
    keys, values = (tensor[0].transpose(0, 1)[segments.seen].repeat_interleave(group, dim=1) for tensor in (key, value))
    longest_query, longest_key = segments.longest
    mixed = varlen_attn(
        query[0].transpose(0, 1).contiguous(),
        keys,
        values,
        segments.query_ends,
        segments.key_ends,
        longest_query,
        longest_key,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
    )
    assert isinstance(mixed, Tensor)
    return mixed[None]


def _attention_by_segment(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float | None, window: int | None
) -> Tensor:
    pieces = []
    for segment in segments.parts:
        own = slice(segment.start, segment.start + segment.length)
        seen = slice(segment.prefix_start, segment.prefix_start + segment.prefix_length)
        q, k, v = query[:, :, own], key[:, :, own], value[:, :, own]
        if segment.prefix_length:
            k = torch.cat((key[:, :, seen], k), dim=2)
            v = torch.cat((value[:, :, seen], v), dim=2)
        if window is None or k.shape[2] <= window:
            pieces.append(_attend(q, k, v, causal_lower_right(q.shape[2], k.shape[2]), scaling))
        else:
            pieces += _windowed_attention(q, k, v, window, scaling)
    return torch.cat(pieces, dim=2).transpose(1, 2).contiguous()


def _windowed_attention(query: Tensor, key: Tensor, value: Tensor, window: int, scaling: float | None) -> list[Tensor]:
    """Attend with the last queries of a sequence to all its keys, `window` queries at a time.

    Such a block sees fewer than twice as many keys. So a sequence costs its length times the window, and no mask is
    larger than the window allows.
    """
    before, pieces = key.shape[2] - query.shape[2], []
    for start in range(0, query.shape[2], window):
        q = query[:, :, start : start + window]
        first, end = max(0, before + start - window + 1), before + start + q.shape[2]
        pieces.append(_attend(q, key[:, :, first:end], value[:, :, first:end], _band(q, end - first, window), scaling))
    return pieces


def _band(query: Tensor, keys: int, window: int) -> Tensor:
    """Return which query sees which key, [queries, keys].

    The last query sees the last key.
    """
    offset = keys - query.shape[2]
    seen = torch.ones(query.shape[2], keys, dtype=torch.bool, device=query.device)
    return seen.tril(offset).triu(offset - window + 1)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped)


def register() -> None:
    """Register `NAME` with transformers.

    Idempotent.
    """
    AttentionInterface.register(NAME, packed_attention)
