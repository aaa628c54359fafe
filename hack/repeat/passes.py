"""Passes: which tests failed in each run of the same tests, kept in a file for interrupted campaigns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True)
class Pass:
    """One run: how many tests were run, the names of those that failed, and the seconds."""

    tests: int
    failed: tuple[str, ...]
    seconds: float


class Passes:
    """The passes over one state of the tree. Another state begins with none."""

    def __init__(self, file: Path, state: str) -> None:
        self._file, self._state = file, state
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        stored = known["passes"] if known.get("state") == state else []
        self.done = [Pass(one["tests"], tuple(one["failed"]), one["seconds"]) for one in stored]

    def add(self, one: Pass) -> None:
        self.done.append(one)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        written = self._file.with_suffix(".new")
        written.write_text(
            json.dumps({"state": self._state, "passes": [asdict(one) for one in self.done]}), encoding="utf-8"
        )
        written.replace(self._file)

    def forget(self) -> None:
        """Begin with none at the next run."""
        self._file.unlink(missing_ok=True)


def pass_of(results: Path, seconds: float) -> Pass:
    """Read pytest's results. Raises OSError or ElementTree.ParseError if it wrote none."""
    cases = list(ElementTree.parse(results).iter("testcase"))
    run = [case for case in cases if case.find("skipped") is None]
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return Pass(len(run), tuple(sorted(map(_name, failed))), seconds)


def table(passes: Sequence[Pass]) -> str:
    """Lay out how often each test failed, and the sum of all passes in the last line."""
    failures = Counter(name for one in passes for name in one.failed)
    lines = [f"{count} of {len(passes)}  {name}" for name, count in failures.most_common()]
    return "\n".join([*lines, _sum(passes, failures.values())])


def _sum(passes: Sequence[Pass], failures: Iterable[int]) -> str:
    tests, seconds = sum(one.tests for one in passes), sum(one.seconds for one in passes)
    return f"{len(passes)} passes, {tests} tests, {sum(failures)} failures, {seconds:.0f} s"


def _name(case: ElementTree.Element) -> str:
    return f"{case.attrib['classname']}::{case.attrib['name']}"
