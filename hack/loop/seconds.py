"""Seconds: how long each test file takes in a part of the loop and which server it shares, from pytest's results.

``hack/loop/seconds.json`` has those of an idle machine with two cores, for files of two seconds and more. Results of
the last `make unit` or `make test` on this machine take precedence. `python -m hack.loop.seconds` rewrites the file.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from .imports import ROOT

KEPT = Path(__file__).with_name("seconds.json")
MEASURED = ROOT / "build" / "loop"
LEAST = 2.0
PARTS = ("unit", "cluster", "real nodes", "engine")
"""The parts that run tests; some files have tests in more than one."""
SERVER = "server"
"""The property of a test in the results that names the fixture of a server which its file shares with others."""


def results(part: str, folder: Path = MEASURED) -> Path:
    """Return the file with pytest's results of a part."""
    return folder / f"{part.replace(' ', '-')}.xml"


def known(part: str, kept: Path = KEPT, measured: Path = MEASURED) -> dict[str, float]:
    """Return the seconds of each test file in a part, by its module's name."""
    seconds: dict[str, float] = json.loads(kept.read_text(encoding="utf-8")).get(part, {})
    return seconds | sums(results(part, measured))


def servers(kept: Path = KEPT, measured: Path = MEASURED) -> dict[str, str]:
    """Return the server that each test file shares with others, by the file's module."""
    found: dict[str, str] = json.loads(kept.read_text(encoding="utf-8")).get(SERVER, {})
    for part in PARTS:
        found |= shared(results(part, measured))
    return found


def shared(file: Path) -> dict[str, str]:
    """Read which server each test file used in a run."""
    return {
        module_of(case.attrib["classname"]): entry.attrib["value"]
        for case in cases(file)
        for entry in case.iter("property")
        if entry.attrib["name"] == SERVER
    }


def sums(file: Path) -> dict[str, float]:
    """Add up a run's seconds by test file."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in cases(file):
        seconds[module_of(case.attrib["classname"])] += float(case.attrib["time"])
    return dict(seconds)


def cases(file: Path) -> list[ElementTree.Element]:
    """Return the tests of a run: none where the file is absent or cut off, as after an interrupted run.

    A run that pytest itself could not end has a case that is no test.
    """
    try:
        return [case for case in ElementTree.parse(file).iter("testcase") if "classname" in case.attrib]
    except (FileNotFoundError, ElementTree.ParseError):
        return []


def module_of(classname: str) -> str:
    """Return the module of a test that may be in a class: ``tests.unit.operator.policies.test_plan.TestPlan``."""
    parent, _, last = classname.rpartition(".")
    return parent if last[:1].isupper() else classname


def main() -> None:
    """Store what the last run of each part measured."""
    kept: dict[str, Mapping[str, int | str]] = {
        part: {test: round(found) for test, found in sorted(sums(results(part)).items()) if found >= LEAST}
        for part in PARTS
    }
    kept[SERVER] = dict(sorted(servers().items()))
    KEPT.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
