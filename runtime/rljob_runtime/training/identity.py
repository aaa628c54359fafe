"""Which model a checkpoint belongs to: where it came from, the shapes of its weights, and a sample of their values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

SAMPLED = 256
"""Values of each tensor that go into the fingerprint: enough to tell two models apart, cheap for large ones."""


@dataclass(frozen=True)
class ModelIdentity:
    """Of the model that training began with."""

    source: str
    shapes: Mapping[str, tuple[int, ...]]
    fingerprint: str

    @classmethod
    def of(cls, model: nn.Module, source: str) -> ModelIdentity:
        """Of a freshly loaded, whole model."""
        digest = hashlib.sha256()
        shapes = {}
        for name, parameter in model.named_parameters():
            shapes[name] = tuple(parameter.shape)
            sample = parameter.detach().reshape(-1)[:SAMPLED].to("cpu", torch.float32).contiguous()
            digest.update(f"{name} {shapes[name]}".encode())
            digest.update(sample.numpy().tobytes())
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
