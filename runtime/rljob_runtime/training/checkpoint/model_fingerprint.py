"""Which model a checkpoint belongs to: where it came from, the shapes of its weights, and a sample of their values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.tensor import DTensor

from rljob_runtime.training.model.sharding import RankGroup

SAMPLED = 256
"""Values of each tensor that go into the fingerprint: enough to tell two models apart, cheap for large ones."""


@dataclass(frozen=True)
class ModelIdentity:
    """Of the model that training began with."""

    source: str
    shapes: Mapping[str, tuple[int, ...]]
    fingerprint: str

    @classmethod
    def of(cls, model: nn.Module, source: str, ranks: RankGroup) -> ModelIdentity:
        """Of a freshly loaded model, the same however many ranks share it. A collective."""
        digest = hashlib.sha256()
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        for (name, shape), sample in zip(shapes.items(), _samples(model, ranks), strict=True):
            digest.update(f"{name} {shape}".encode())
            digest.update(sample.tobytes())
        return cls(source, shapes, digest.hexdigest())

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"shapes": {name: list(shape) for name, shape in self.shapes.items()}}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ModelIdentity:
        """The inverse of `to_dict`."""
        shapes = {name: tuple(shape) for name, shape in document["shapes"].items()}
        return cls(document["source"], shapes, document["fingerprint"])

    def difference(self, other: ModelIdentity) -> str | None:
        """How `other` (a checkpoint's) is not this model, in words; None when it is. The source may be spelled
        otherwise."""
        missing, extra = self.shapes.keys() - other.shapes.keys(), other.shapes.keys() - self.shapes.keys()
        if missing or extra:
            name = min(missing or extra)
            return f"it {'lacks' if missing else 'has'} {name}, and the model {'has' if missing else 'lacks'} it"
        for name, shape in self.shapes.items():
            if shape != other.shapes[name]:
                return f"its {name} is {list(other.shapes[name])}, and the model's is {list(shape)}"
        if self.fingerprint != other.fingerprint:
            return "its weights began with other values than the model's"
        return None


def _samples(model: nn.Module, ranks: RankGroup) -> list[NDArray[np.float32]]:
    """The first values of each parameter. Shards are cut along the first dimension, so the ranks' first values, laid
    end to end, begin with the parameter's."""
    own = []
    for parameter in model.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        own.append(local.detach().reshape(-1)[:SAMPLED].to("cpu", torch.float32).numpy())
    counts = np.array([len(sample) for sample in own], dtype=np.int64)
    told = ranks.gather_bytes(counts.tobytes() + np.concatenate(own).tobytes())
    per_rank = []
    for blob in told:
        lengths = np.frombuffer(blob, np.int64, len(own))
        values = np.frombuffer(blob, np.float32, offset=counts.nbytes)
        per_rank.append(np.split(values, np.cumsum(lengths)[:-1]))
    return [np.concatenate(parts)[:SAMPLED] for parts in zip(*per_rank, strict=True)]
