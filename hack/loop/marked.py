"""Marked: the test files that carry a marker, so that a part need not collect the other files to find its few tests.

Collecting all tests takes each process of pytest eight seconds of processor time. A file is found by the text
``mark.NAME``, so a file whose tests get the marker from a fixture says so in a comment. `hidden` finds a file that
does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .imports import ROOT

PARTS = ("cluster", "realnodes", "engine")
"""The markers of which a part of `make test` runs the tests."""
_OF_A_PART = re.compile(rf"^pytestmark = \[?\s*[^#\n]*\bmark\.({'|'.join(PARTS)})\b", re.MULTILINE)


@cache
def files(marker: str, root: Path = ROOT) -> tuple[str, ...]:
    """Return the test files with a marker, relative to the root."""
    named = re.compile(rf"\bmark\.{marker}\b")
    found = (path for path in (root / "tests").rglob("test_*.py") if named.search(path.read_text(encoding="utf-8")))
    return tuple(sorted(path.relative_to(root).as_posix() for path in found))


def is_of_a_part(file: Path) -> bool:
    """Return whether a part runs every test of a file, so that the unit tests need not import it."""
    return _OF_A_PART.search(file.read_text(encoding="utf-8")) is not None


def hidden(file: str, has: Callable[[str], bool], root: Path = ROOT) -> str | None:
    """Return the marker that a test of a file has but that the file does not name. Such a test would never run."""
    return next((name for name in PARTS if has(name) and file not in files(name, root)), None)
