"""Limits: how long one test of a mutant may take, from what its tests took in the last unit tests on this machine.

Many mutants let a test wait for what never comes, and most tests take a fraction of a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
    from hack.loop.seconds import cases

    return {_path(case.attrib["classname"], case.attrib["name"]): float(case.attrib["time"]) for case in cases(results)}


def limit(tests: Iterable[str], seconds: Mapping[str, float], root: Path) -> float:
    """Return the limit in seconds of each of some tests, which are named as pytest's arguments.

    Rows that were not measured may take longer than those that were, so a file that has such has the most.
    """
    longest = [_longest(test, seconds, root) for test in tests]
    if not longest or None in longest:
        return MOST
    return min(max(LEAST, *(TIMES * one for one in longest if one is not None)), MOST)


def _longest(test: str, seconds: Mapping[str, float], root: Path) -> float | None:
    """Return what the longest row of an argument took, or None if that is not known."""
    if test in seconds:
        return seconds[test]
    if _OTHER_ROWS.search((root / test.partition("::")[0]).read_text(encoding="utf-8")):
        return None
    rows = (taken for path, taken in seconds.items() if path == test or path.startswith((f"{test}[", f"{test}::")))
    return max(rows, default=None)


def _path(classname: str, name: str) -> str:
    from hack.loop.seconds import module_of

    module = module_of(classname)
    own_class = classname.removeprefix(module).lstrip(".")
    return "::".join(filter(None, (module.replace(".", "/") + ".py", own_class, name)))
