"""Sample rows: samples as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = ("prompt", "response", "reward", "rewards", "outcome", "reason", "tokens", "promptId", "sample")
"""Columns of a table of samples."""


def row_of(record: Mapping[str, Any]) -> list[Any]:
    """Return the cells of a sample; the prompt is the text of its messages."""
    messages = record.get("prompt", ())
    prompt = "\n\n".join(f"{one.get('role', '')}: {one.get('content', '')}" for one in messages)
    rewards = ", ".join(f"{name} {value:g}" for name, value in record.get("rewards", {}).items())
    return [prompt, *(rewards if name == "rewards" else record.get(name) for name in COLUMNS[1:])]
