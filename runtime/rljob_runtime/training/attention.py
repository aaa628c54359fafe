"""Attention over a packed row: each segment sees its prefix and, causally, itself, and nothing else in the row.

Registered with transformers under `NAME`; a model loaded with `attn_implementation=NAME` builds no mask and hands the
`segments` given to its forward on to every layer. There is one call a segment: no T x T mask and no padding, so a row
costs what its sequences cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rljob_runtime.training.packing import Segment

NAME = "rljob_packed"


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Sequence[Segment],
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`query` [1, H, T, D], `key` and `value` [1, H_kv, T, D] -> [1, T, H, D]. Segments must cover the row in order."""
    grouped = query.shape[1] != key.shape[1]
    # Under autocast the rotation leaves queries and keys in fp32, where a bfloat16 model would have rounded them.
    query, key = query.to(value.dtype), key.to(value.dtype)
    pieces = []
    for segment in segments:
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
    return torch.cat(pieces, dim=2).transpose(1, 2), None


def register() -> None:
    """Make `NAME` known to transformers. Idempotent."""
    AttentionInterface.register(NAME, packed_attention)
