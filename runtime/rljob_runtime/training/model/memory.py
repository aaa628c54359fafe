"""Memory account: lists the memory that a trainer rank needs, and refuses what does not fit.

The account holds the certain part: the rank's share of all values per weight, the layers that FSDP gathers, and the
longest row that the spec allows. Activations inside a layer, CUDA and Python come on top. So a spec that passes may
still be too large, and one that fails cannot run.

A backward pass has four copies of a layer simultaneously: the layer, the next one being gathered, the layer's gradient
and the previous gradient being reduced. Weights outside of layers, and their gradients, exist for the whole pass.
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
    """Sizes of a model, in weights.

    `parameters` counts all weights, `largest_layer` those of the largest layer, and `outside` those in no layer.
    """

    parameters: int
    largest_layer: int
    outside: int
    vocabulary: int
    hidden: int
    layers: int


@dataclass(frozen=True)
class Work:
    """The work of the ranks on a model.

    `rounded` says that weights are published in a narrower format than they are stored in. `row` is the number of
    tokens of the longest row. `checkpointed` says that layers are recomputed in the backward pass. `logit` is the size
    of a logit in bytes.
    """

    ranks: int
    row: int
    rounded: bool
    logit: int
    reference: bool = False
    early: bool = False
    checkpointed: bool = False

    @property
    def bytes_a_weight(self) -> int:
        """Bytes per weight.

        Compute copy, gradient, two moments and master copy; a second gradient; a frozen model.
        """
        return WIDE * (4 + self.rounded + self.early + self.reference)


def recomputes_activations(device: str, ranks: int) -> bool:
    """Return whether layers are recomputed in the backward pass.

    Under autocast, a layer keeps a narrow copy of its full weights for the backward pass. Ranks that share a model
    would each keep a copy of all weights.
    """
    return device != "cpu" or ranks > 1


@dataclass(frozen=True)
class Item:
    """`bytes` of memory for `what`."""

    what: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.bytes / GIB:.2f} GiB for {self.what}"


def memory_items(size: ModelSize, work: Work) -> list[Item]:
    """List the memory that each rank needs."""
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
        gathered = (
            f"gathered weights and gradients, 4 copies of a layer of {layer:,} weights and 2 of {outside:,} outside"
        )
        items.append(Item(gathered, (4 * layer + 2 * outside) * WIDE))
    if work.checkpointed:
        kept = f"activations that {size.layers} layers keep of that row"
        items.append(Item(kept, size.layers * work.row * size.hidden * WIDE))
    return items


def refusal(items: Sequence[Item], available: int, where: str) -> str | None:
    """Return the reason why the items do not fit, with the sum, or None when they may fit."""
    total = sum(item.bytes for item in items)
    if total <= available:
        return None
    return (
        f"the trainer does not fit: each rank needs {total / GIB:.2f} GiB ({'; '.join(map(str, items))}), and {where} "
        f"has {available / GIB:.2f} GiB. More spec.trainer.replicas or acceleratorsPerReplica share the weights, a "
        "lower spec.algorithm.maxTokensPerMicrobatch shortens rows"
    )


def host_memory() -> int:
    """Return the bytes that this process may use.

    The limit is the machine's, or the container's where that is lower.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)
