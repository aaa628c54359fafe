"""Failures: which tests of a part failed and why, from pytest's results.

A run prints them below its table. The output of the part itself may be far above, behind that of a background part, or
cut off, as in the log of a gate that keeps the last lines only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from .seconds import PARTS, cases, results

MOST = 10
"""Tests that a run names, of each part."""
WIDTH = 200
"""Characters of a reason."""


def written(folder: Path) -> dict[str, int]:
    """Return when the results of each part were written, in nanoseconds of the file system's clock.

    Times of files are compared with each other only: they may lag behind the clock of processes by a tick.
    """
    files = {part: results(part, folder) for part in PARTS}
    return {part: file.stat().st_mtime_ns for part, file in files.items() if file.exists()}


def of_parts(names: Sequence[str], before: Mapping[str, int], folder: Path) -> Iterator[str]:
    """Yield a line for each failed test of these parts. Results that were `written` before the run are left out."""
    now = written(folder)
    for name in names:
        if now.get(name) == before.get(name):
            continue  # A part without tests, or one that ended before pytest wrote its results.
        file = results(name, folder)
        failed = [line for case in cases(file) for line in _failures(case)]
        yield from (f"{name}: {line}" for line in failed[:MOST])
        if len(failed) > MOST:
            yield f"{name}: … and {len(failed) - MOST} more"


def _failures(case: ElementTree.Element) -> Iterator[str]:
    test = f"{case.attrib['classname']}::{case.attrib.get('name', '')}"
    for problem in (*case.findall("failure"), *case.findall("error")):
        reason = " ".join(problem.attrib.get("message", "").split())
        yield f"{test}: {reason[:WIDTH]}"
