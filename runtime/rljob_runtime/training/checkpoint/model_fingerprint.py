"""Model fingerprint: identifies the model that a checkpoint belongs to.

It holds the source, the shapes of the weights and a digest of sampled values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.tensor import DTensor

from rljob_runtime.training.model.sharding import RankGroup

SAMPLED = 256
"""Values of each tensor in the digest: enough to tell two models apart, and cheap for large ones."""


@dataclass(frozen=True)
class ModelFingerprint:
    """Fingerprint of the model at the start of training."""

    source: str
    shapes: Mapping[str, tuple[int, ...]]
    digest: str

    @classmethod
    def of(cls, model: nn.Module, source: str, ranks: RankGroup) -> ModelFingerprint:
        """Compute the fingerprint of a freshly loaded model.

        It does not depend on the number of ranks. A collective.
        """
        digest = hashlib.sha256()
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        for (name, shape), sample in zip(shapes.items(), _samples(model, ranks), strict=True):
            digest.update(f"{name} {shape}".encode())
            digest.update(sample.tobytes())
        return cls(source, shapes, digest.hexdigest())

    def to_dict(self) -> dict[str, Any]:
        """Return the fingerprint as JSON."""
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        return {"source": self.source, "shapes": shapes, "fingerprint": self.digest}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ModelFingerprint:
        """Read the result of `to_dict`."""
        shapes = {name: tuple(shape) for name, shape in document["shapes"].items()}
        return cls(document["source"], shapes, document["fingerprint"])

    def difference(self, other: ModelFingerprint) -> str | None:
        """Describe how a checkpoint's fingerprint differs from this model.

        None when it does not. The source may be spelled differently.
        """
        missing, extra = self.shapes.keys() - other.shapes.keys(), other.shapes.keys() - self.shapes.keys()
        if missing or extra:
            name = min(missing or extra)
            return f"it {'lacks' if missing else 'has'} {name}, and the model {'has' if missing else 'lacks'} it"
        for name, shape in self.shapes.items():
            if shape != other.shapes[name]:
                return f"its {name} is {list(other.shapes[name])}, and the model's is {list(shape)}"
        if self.digest != other.digest:
            return "its weights began with other values than the model's"
        return None


def _samples(model: nn.Module, ranks: RankGroup) -> list[NDArray[np.float32]]:
    """Return the first values of each parameter.

    Shards are cut along the first dimension, so the first values of all ranks, end to end, start with those of the
    parameter.
    """
    own = []
    for parameter in model.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        own.append(local.detach().reshape(-1)[:SAMPLED].to("cpu", torch.float32).numpy())
    counts = np.array([len(sample) for sample in own], dtype=np.int64)
    blobs = ranks.gather_bytes(counts.tobytes() + np.concatenate(own).tobytes())
    per_rank = []
    for blob in blobs:
        lengths = np.frombuffer(blob, np.int64, len(own))
        values = np.frombuffer(blob, np.float32, offset=counts.nbytes)
        per_rank.append(np.split(values, np.cumsum(lengths)[:-1]))
    return [np.concatenate(parts)[:SAMPLED] for parts in zip(*per_rank, strict=True)]
