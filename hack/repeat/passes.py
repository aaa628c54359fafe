"""Passes: which tests failed in each run of the same tests, kept in a file for interrupted campaigns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from hack.resumable import Resumable


@dataclass(frozen=True)
class Pass:
    """One run: how many tests were run, the names of those that failed, and the seconds."""

    tests: int
    failed: tuple[str, ...]
    seconds: float


class Passes:
    """The passes over one state of the tree. Another state begins with none."""

    def __init__(self, file: Path, state: str) -> None:
        self._kept = Resumable(file, state)

    @property
    def done(self) -> list[Pass]:
        """The passes that ended, in order."""
        return [Pass(one["tests"], tuple(one["failed"]), one["seconds"]) for one in self._kept.entries]

    def add(self, one: Pass) -> None:
        self._kept.add(asdict(one))

    def forget(self) -> None:
        """Begin with none at the next run."""
        self._kept.forget()


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
