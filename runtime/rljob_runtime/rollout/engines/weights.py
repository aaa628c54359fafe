"""Weights: tensors of the relay's segment that alias shared memory, so that loading makes the only copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from rljob_runtime.relay.segment import NoVersion, Segment
from rljob_runtime.relay.tensors import views

NamedTensors = Iterator[tuple[str, torch.Tensor]]


class VersionUnavailable(LookupError):
    """The relay's segment does not hold version `requested` completely; it holds version `held`, or none."""

    def __init__(self, requested: int, held: int | None) -> None:
        super().__init__(requested, held)  # these arguments are sent between processes
        self.requested = requested
        self.held = held

    def __str__(self) -> str:
        held = "none" if self.held is None else self.held
        return f"weight version {self.requested} is requested, the relay holds {held}"


class WeightMismatch(ValueError):
    """The segment's tensors are not those of the engine's model. The message names the first that differs."""


def open_version(folder: Path, version: int) -> NamedTensors:
    """Return the tensors of `version` by Hugging Face name. They stay valid while any of them is alive.

    Raises `VersionUnavailable` immediately if the segment's newest complete version is another one or there is none.
    """
    try:
        weights = Segment.open(folder).current()
    except NoVersion as error:
        raise VersionUnavailable(version, None) from error
    if weights.manifest.version != version:
        raise VersionUnavailable(version, weights.manifest.version)
    return views(weights.manifest, weights.buffer)
