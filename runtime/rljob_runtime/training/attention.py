"""Attention over a packed row: each segment sees its prefix and, causally, itself, and nothing else in the row.

Registered with transformers under `NAME`; a model loaded with `attn_implementation=NAME` builds no mask and hands the
`segments` given to its forward on to every layer. There is no T x T mask and no padding, so a row costs what its
sequences cost: on a GPU in half precision by one kernel for all segments, elsewhere by one call a segment.
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

from rljob_runtime.training.packing import Segment

NAME = "rljob_packed"
LARGEST_HEAD = 256
"""What the kernel for all segments takes."""


@dataclass(frozen=True)
class Segments:
    """The segments of a row, which cover it in order, and where a kernel on `device` finds them: made once a row, not
    once a layer."""

    parts: Sequence[Segment]
    device: torch.device

    @cached_property
    def query_ends(self) -> Tensor:
        """[segments + 1] int32: 0, then where each segment ends in the row."""
        return self._running(segment.length for segment in self.parts)

    @cached_property
    def key_ends(self) -> Tensor:
        """[segments + 1] int32: the same in what the segments see, laid end to end."""
        return self._running(segment.prefix_length + segment.length for segment in self.parts)

    @cached_property
    def seen(self) -> Tensor:
        """What each segment sees, laid end to end: its prefix, then itself."""
        places: list[int] = []
        for one in self.parts:
            places += range(one.prefix_start, one.prefix_start + one.prefix_length)
            places += range(one.start, one.start + one.length)
        return torch.tensor(places).to(self.device)

    @property
    def longest(self) -> tuple[int, int]:
        """The longest segment, and the most that one sees."""
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
    **_: Any,
) -> tuple[Tensor, None]:
    """`query` [1, H, T, D], `key` and `value` [1, H_kv, T, D] -> [1, T, H, D]."""
    # Under autocast the rotation leaves queries and keys in fp32, where a bfloat16 model would have rounded them.
    query, key = query.to(value.dtype), key.to(value.dtype)
    together = value.is_cuda and value.dtype.itemsize == 2 and value.shape[-1] <= LARGEST_HEAD
    attend = _all_at_once if together else _one_by_one
    return attend(query, key, value, segments, scaling), None


def _all_at_once(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float | None) -> Tensor:
    """Flash attention over sequences of many lengths. Heads of keys are repeated: not every release of torch groups
    them here, and they are small."""
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
        window_size=(-1, 0),
    )
    assert isinstance(mixed, Tensor)
    return mixed[None]


def _one_by_one(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float | None) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    pieces = []
    for segment in segments.parts:
        own = slice(segment.start, segment.start + segment.length)
        seen = slice(segment.prefix_start, segment.prefix_start + segment.prefix_length)
        k, v = key[:, :, own], value[:, :, own]
        if segment.prefix_length:
            k = torch.cat((key[:, :, seen], k), dim=2)
            v = torch.cat((value[:, :, seen], v), dim=2)
        mask = causal_lower_right(segment.length, segment.prefix_length + segment.length)
        pieces.append(
            scaled_dot_product_attention(
                query[:, :, own], k, v, attn_mask=mask, scale=scaling, enable_gqa=grouped
            )
        )  # fmt: skip
    return torch.cat(pieces, dim=2).transpose(1, 2)


def register() -> None:
    """Make `NAME` known to transformers. Idempotent."""
    AttentionInterface.register(NAME, packed_attention)
