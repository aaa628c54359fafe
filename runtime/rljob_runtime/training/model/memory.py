"""What a rank of the trainer needs of its memory, by account, and whether there is so much.

The account holds what is certain: the rank's share of all that there is a value of for each weight, the layers that
FSDP makes whole for a moment, and the longest row that the spec allows. Activations inside a layer, CUDA itself and
Python come on top, so a spec that passes may yet be too large; one that does not pass cannot run.

Whole are, in a backward pass: a layer, the next one on its way, the gradient of the layer, and that of the one before
on its way to the ranks. What is outside of layers, and its gradient, is needed from the pass's beginning to its end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
WIDE = 4
"""Bytes of a value in fp32."""
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class ModelSize:
    """`parameters`: all weights. `largest_layer`: those of the layer that has most. `outside`: those of no layer."""

    parameters: int
    largest_layer: int
    outside: int
    vocabulary: int
    hidden: int
    layers: int


@dataclass(frozen=True)
class Work:
    """What ranks do with it. `rounded`: weights are published narrower than they are kept. `row`: tokens of the longest
    row. `checkpointed`: layers are computed again in the backward pass. `logit`: bytes of one."""

    ranks: int
    row: int
    rounded: bool
    logit: int
    reference: bool = False
    early: bool = False
    checkpointed: bool = False

    @property
    def bytes_a_weight(self) -> int:
        """The computing copy, its gradient, two moments, and the master copy; a second gradient; a frozen model."""
        return WIDE * (4 + self.rounded + self.early + self.reference)


def computes_again(device: str, ranks: int) -> bool:
    """Whether layers are computed again in the backward pass. What a layer keeps for it has, under autocast, a narrow
    copy of its whole weights: ranks that share a model would each have all of it."""
    return device != "cpu" or ranks > 1


@dataclass(frozen=True)
class Item:
    """`bytes` for `what`."""

    what: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.bytes / GIB:.2f} GiB for {self.what}"


def account(size: ModelSize, work: Work) -> list[Item]:
    """What each rank needs."""
    weights = f"{work.bytes_a_weight} bytes a weight of {size.parameters:,}"
    share = Item(
        weights if work.ranks == 1 else f"{weights} over {work.ranks} ranks",
        -(-size.parameters * work.bytes_a_weight // work.ranks),
    )
    logits = Item(
        f"logits and their gradient of a row of {work.row:,} tokens, {size.vocabulary:,} entries each",
        work.row * size.vocabulary * 2 * work.logit,
    )
    items = [share, logits]
    if work.ranks > 1:
        layer, outside = size.largest_layer, size.outside
        whole = f"what is whole for a moment, 4 copies of a layer of {layer:,} weights and 2 of {outside:,} outside"
        items.append(Item(whole, (4 * layer + 2 * outside) * WIDE))
    if work.checkpointed:
        kept = f"what {size.layers} layers keep of that row"
        items.append(Item(kept, size.layers * work.row * size.hidden * WIDE))
    return items


def refusal(items: Sequence[Item], available: int, where: str) -> str | None:
    """Why it cannot fit, with the sum, or None when it may."""
    total = sum(item.bytes for item in items)
    if total <= available:
        return None
    return (
        f"the trainer does not fit: each rank needs {total / GIB:.2f} GiB ({'; '.join(map(str, items))}), and {where} "
        f"has {available / GIB:.2f} GiB. More spec.trainer.replicas or acceleratorsPerReplica share the weights, a "
        "lower spec.algorithm.maxTokensPerMicrobatch shortens rows"
    )


def host_memory() -> int:
    """Bytes that this process may use: the machine's, or its container's where that has fewer."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)
