"""Limits: how long one test of a mutant may take, from what its tests took in the last unit tests on this machine.

Many mutants let a test wait for what never comes, and most tests take a fraction of a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path

MOST = 100.0
"""Limit in seconds of a test that has none of its own. Without a mutant none takes half a minute."""
LEAST = 20.0
"""In seconds: tests of a busy machine, which load what they need."""
TIMES = 20.0
"""What its tests took counts so often: mutants run at the same time, and property tests draw all examples."""

_OTHER_ROWS = re.compile(r"mark\.(slow|engine)|import slow|, slow\b")
"""What a test file names if it has rows that `make test` leaves out, or runs elsewhere."""


def measured(results: Path) -> dict[str, float]:
    """Return the seconds of each test of a run, by its path from the root: none where there are no results."""
    # Imported here: a run of pytest unpickles this package, and must find the `hack.loop` of its own tree first.
    from hack.loop.seconds import cases, module_of

    found = {}
    for case in cases(results):
        classname = case.attrib["classname"]
        module = module_of(classname)
        path = (module.replace(".", "/") + ".py", classname.removeprefix(module).lstrip("."), case.attrib["name"])
        found["::".join(filter(None, path))] = float(case.attrib["time"])
    return found


def limit(tests: Iterable[str], seconds: Mapping[str, float], root: Path) -> float:
    """Return the limit in seconds of each of some tests, which are named as pytest's arguments.

    Rows that were not measured may take longer than those that were, so a file that has such has the most.
    """
    longest = max((_longest(test, seconds, root) for test in tests), default=inf)
    return min(max(LEAST, TIMES * longest), MOST)


def _longest(test: str, seconds: Mapping[str, float], root: Path) -> float:
    """Return what the longest row of an argument took; infinity if that is not known."""
    if test in seconds:
        return seconds[test]
    if _OTHER_ROWS.search((root / test.partition("::")[0]).read_text(encoding="utf-8")):
        return inf
    rows = (taken for path, taken in seconds.items() if path.startswith((f"{test}[", f"{test}::")))
    return max(rows, default=inf)
