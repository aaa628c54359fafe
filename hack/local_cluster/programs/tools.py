"""Tools: kubectl and helm, built with the cluster's own version of Kubernetes."""

from __future__ import annotations

from pathlib import Path

from . import build, recipe


def folder() -> Path:
    """Return the folder with ``kubectl`` and ``helm``, built first when it is not there yet. Raises ClusterError."""
    return build.binaries(recipe.TOOLS)
