"""Pages as data: their texts, and the rows of their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

QUOTED = re.compile(r"`([^`\n]+)`")


def page(name: str) -> Path:
    """Find a page below docs/ by its name, which no other page has, or by the end of its path."""
    [found] = [
        path for path in PAGES if path.is_relative_to(DOCS) and f"/{path.relative_to(DOCS)}".endswith(f"/{name}")
    ]
    return found


def text_of(path: Path) -> str:
    """The page without code blocks."""
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def rows(path: Path, heading: str) -> Iterator[list[str]]:
    """The cells of the first table below a heading, without its own heads."""
    below = f"\n{text_of(path)}".partition(f"\n{heading}\n")[2]
    assert below, f"{path}: no heading {heading!r}"
    table = re.search(r"(?:^\|.*\|$\n?)+", below, re.MULTILINE)
    assert table is not None, f"{path}: no table below {heading!r}"
    for line in table[0].splitlines()[2:]:
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def quoted(cell: str) -> list[str]:
    """What stands in backticks."""
    return QUOTED.findall(cell)


def joined(path: Path) -> str:
    """The page without code blocks, its lines joined."""
    return " ".join(text_of(path).split())
