"""Weights out of the relay's segment, as tensors that alias the shared memory: loading them makes the one copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from rljob_runtime.relay.segment import NoVersion, Segment
from rljob_runtime.relay.tensors import views

NamedTensors = Iterator[tuple[str, torch.Tensor]]


class VersionUnavailable(LookupError):
    """The relay's segment does not hold the wanted version whole."""


class WeightMismatch(ValueError):
    """The segment's tensors are not those of the engine's model; the message names the first that differs."""


def open_version(folder: Path, version: int) -> NamedTensors:
    """The tensors of `version` by Hugging Face name. They stay valid (and the version pinned) while any is alive.

    Raises `VersionUnavailable`, at the call, when the segment's newest whole version is another one or there is none.
    """
    try:
        weights = Segment.open(folder).current()
    except NoVersion as error:
        raise VersionUnavailable(f"weight version {version} is wanted, the relay holds none: {error}") from error
    if weights.manifest.version != version:
        raise VersionUnavailable(f"weight version {version} is wanted, the relay holds {weights.manifest.version}")
    return views(weights.manifest, weights.buffer)
