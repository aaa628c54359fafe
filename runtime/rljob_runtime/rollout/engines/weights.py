"""Weights out of the relay's segment, as tensors that alias the shared memory: loading them makes the one copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from rljob_runtime.relay.segment import NoVersion, Segment
from rljob_runtime.relay.tensors import views

NamedTensors = Iterator[tuple[str, torch.Tensor]]


class VersionUnavailable(LookupError):
    """The relay's segment does not hold the version `wanted` whole, but the version `held`, or none."""

    def __init__(self, wanted: int, held: int | None) -> None:
        super().__init__(wanted, held)  # what travels between processes
        self.wanted = wanted
        self.held = held

    def __str__(self) -> str:
        return f"weight version {self.wanted} is wanted, the relay holds {'none' if self.held is None else self.held}"


class WeightMismatch(ValueError):
    """The segment's tensors are not those of the engine's model; the message names the first that differs."""


def open_version(folder: Path, version: int) -> NamedTensors:
    """The tensors of `version` by Hugging Face name. They stay valid (and the version pinned) while any is alive.

    Raises `VersionUnavailable`, at the call, when the segment's newest whole version is another one or there is none.
    """
    try:
        weights = Segment.open(folder).current()
    except NoVersion as error:
        raise VersionUnavailable(version, None) from error
    if weights.manifest.version != version:
        raise VersionUnavailable(version, weights.manifest.version)
    return views(weights.manifest, weights.buffer)
