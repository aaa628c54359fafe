"""Seconds: how long each test file takes, read from pytest's results.

``hack/loop/seconds.json`` has those of a quiet machine with two cores, for files of two seconds and more. What the last
`make unit` or `make test` measured here comes before it. `python -m hack.loop.seconds` writes the file anew.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

from .imports import ROOT

KEPT = Path(__file__).with_name("seconds.json")
MEASURED = ROOT / "build" / "loop" / "unit.xml"
LEAST = 2.0


def known(kept: Path = KEPT, measured: Path = MEASURED) -> dict[str, float]:
    """The seconds of each test file, by its module's name."""
    seconds: dict[str, float] = json.loads(kept.read_text(encoding="utf-8"))
    if measured.exists():
        seconds |= sums(measured)
    return seconds


def sums(results: Path) -> dict[str, float]:
    """Add up a run's seconds by test file. Raises ElementTree.ParseError for a file that is no such results."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in ElementTree.parse(results).iter("testcase"):
        seconds[case.attrib["classname"]] += float(case.attrib["time"])
    return dict(seconds)


def main() -> None:
    """Keep what the last run of the unit tests measured."""
    kept = {test: round(seconds) for test, seconds in sorted(sums(MEASURED).items()) if seconds >= LEAST}
    KEPT.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
