"""A run says which mutants survive, goes on where it was interrupted, and never changes the working tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.mutants import BadMutant, Mutant, limits
from hack.mutants import trees as trees_
from hack.mutants.__main__ import Run, main
from hack.mutants.progress import Progress
from hack.mutants.trees import Trees
from hack.resumable import state_of

CODE = "def twice(a):\n    return a + a\n"
TESTS = "from small import twice\n\n\ndef test_twice():\n    assert twice(2) == 4\n"


def mutant(name: str, after: str, before: str = "a + a", tests: tuple[str, ...] = ("tests/test_small.py",)) -> Mutant:
    return Mutant(name, "small:twice", before, after, tests)


CAUGHT, SURVIVES = mutant("caught", "a"), mutant("survives", "2 * a")


class Played:
    """Trees in which pytest says what a table says."""

    def __init__(self, statuses: dict[str, int | Exception], untouched: int = 0) -> None:
        self.statuses, self.untouched = statuses, untouched
        self.tried: list[str] = []

    def test(self, tests: tuple[str, ...], limit: float) -> tuple[int, str]:
        return self.untouched, "FAILED tests/test_small.py::test_twice"

    def test_with(self, mutant: Mutant) -> tuple[int, str]:
        self.tried.append(mutant.name)
        status = self.statuses.get(mutant.name, 1)
        if isinstance(status, BaseException):
            raise status
        return status, "FAILED tests/test_small.py::test_twice"

    def stop(self) -> None:
        pass


OUTCOMES = {
    "every mutant is caught": ({"caught": 1}, 0, 0, []),
    "one survives": ({"caught": 1, "survives": 0}, 0, 1, ["survives"]),
    "pytest finds no test": ({"survives": 4}, 0, 1, ["survives"]),
    "the tests take too long": ({"survives": -9}, 0, 1, ["survives"]),
    "it does not fit the code": ({"survives": BadMutant("it is elsewhere")}, 0, 1, ["survives"]),
    "a test fails without a mutant": ({"caught": 1}, 1, 1, []),
}


@pytest.mark.parametrize(("statuses", "untouched", "status", "named"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_a_run_tells_what_survived(tmp_path, capsys, statuses, untouched, status, named) -> None:
    run = Run(Played(statuses, untouched), Progress(tmp_path / "all.json", "now"))
    assert run.all((CAUGHT, SURVIVES), 1) == status
    told = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("  survived: ") for line in told if line.startswith("  survived: ")] == named
    assert f"mutants: {2 - len(named)} caught, {len(named)} survived" in told


@pytest.mark.parametrize(("tested", "status"), [(True, 0), (False, 1)])
def test_tests_that_have_passed_are_not_run_again_without_a_mutant(tmp_path, tested: bool, status: int) -> None:
    run = Run(Played({}, untouched=1), Progress(tmp_path / "all.json", "now"))
    assert run.all((CAUGHT,), 1, tested) == status


def test_an_interrupted_run_goes_on_with_what_is_left(tmp_path, capsys) -> None:
    file, mutants = tmp_path / "build/all.json", [mutant(name, "a") for name in "abcd"]
    with pytest.raises(KeyboardInterrupt):
        Run(Played({"c": KeyboardInterrupt()}), Progress(file, "now")).all(mutants, 1)
    again = Played({})
    assert Run(again, Progress(file, "now")).all(mutants, 1) == 0
    # What ran at the interruption may be done or not.
    assert not {"a", "b"} & set(again.tried)
    assert {"c"} <= set(again.tried)
    assert "mutants: 4 caught, 0 survived" in capsys.readouterr().out
    complete = Played({})
    Run(complete, Progress(file, "now")).all(mutants, 1)
    assert complete.tried == ["a", "b", "c", "d"]


def test_another_tree_begins_from_scratch(tmp_path) -> None:
    Progress(tmp_path / "all.json", "then").add(CAUGHT)
    assert Progress(tmp_path / "all.json", "then").left([CAUGHT, SURVIVES]) == [SURVIVES]
    assert Progress(tmp_path / "all.json", "now").left([CAUGHT, SURVIVES]) == [CAUGHT, SURVIVES]


def test_the_state_of_a_tree_is_that_of_its_files(tmp_path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/a.py").write_text("1")
    first = state_of(tmp_path, ("code",))
    (tmp_path / "code/a.pyc").write_text("1")
    (tmp_path / "other").write_text("1")
    assert state_of(tmp_path, ("code",)) == first
    (tmp_path / "code/a.py").write_text("2")
    second = state_of(tmp_path, ("code",))
    (tmp_path / "code/a.py").rename(tmp_path / "code/b.py")
    assert len({first, second, state_of(tmp_path, ("code",))}) == 3


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    """A tree with one module and one test."""
    root = tmp_path / "root"
    for folder in ("runtime", "tests"):
        (root / folder).mkdir(parents=True)
    (root / "runtime/small.py").write_text(CODE)
    (root / "tests/test_small.py").write_text(TESTS)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    monkeypatch.setattr(trees_, "COPIED", ("runtime", "tests", "pyproject.toml"))
    return root


def test_mutants_are_tried_in_copies(small: Path, tmp_path) -> None:
    (tmp_path / "copies").mkdir()
    trees = Trees(small, tmp_path / "copies", 1, ("pytest",))
    assert trees.test(("tests/test_small.py",), 60)[0] == 0
    assert trees.test_with(CAUGHT)[0] == 1
    assert trees.test_with(SURVIVES)[0] == 0
    with pytest.raises(BadMutant, match="'caught'"):
        trees.test_with(mutant("caught", "a", before="a - a"))
    assert (small / "runtime/small.py").read_text() == (tmp_path / "copies/0/runtime/small.py").read_text() == CODE


def test_a_run_that_takes_too_long_is_ended(small: Path, tmp_path) -> None:
    (small / "tests/test_small.py").write_text("import time\n\n\ndef test_slow():\n    time.sleep(300)\n")
    (tmp_path / "copies").mkdir()
    assert Trees(small, tmp_path / "copies", 1, ("pytest",)).test(("tests/test_small.py",), 3)[0] not in (0, 1)


def test_a_test_that_hangs_is_ended_soon_if_it_is_known_to_be_short(small: Path, tmp_path, monkeypatch) -> None:
    """It is caught by the limit of its tests, long before that of the run."""
    (small / "tests/test_small.py").write_text(
        "import time\nfrom small import twice\n\n\ndef test_twice():\n    while twice(2) != 4:\n        time.sleep(1)\n"
    )
    (small / "build/loop").mkdir(parents=True)
    case = '<testcase classname="tests.test_small" name="test_twice" time="0.01"/>'
    (small / "build/loop/unit.xml").write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    monkeypatch.setattr(limits, "LEAST", 2.0)
    (tmp_path / "copies").mkdir()
    status, output = Trees(small, tmp_path / "copies", 1, ("pytest",)).test_with(CAUGHT)
    assert (status, "Timeout (>2.0s)" in output) == (1, True), output


def test_a_property_that_fails_is_not_searched_for_its_smallest_example(small: Path, tmp_path) -> None:
    drawn = small / "drawn"
    (small / "tests/test_small.py").write_text(
        "from hypothesis import given, strategies\nfrom small import twice\n\n\n"
        "@given(strategies.lists(strategies.integers(), min_size=20))\ndef test_twice(values):\n"
        f"    with open({str(drawn)!r}, 'a') as file:\n        file.write('.')\n"
        "    assert twice(sum(values)) != sum(values)\n"
    )
    (tmp_path / "copies").mkdir()
    assert Trees(small, tmp_path / "copies", 1, ("pytest",)).test_with(CAUGHT)[0] == 1
    # Its first example fails, and hypothesis repeats that one to be sure.
    assert len(drawn.read_text()) <= 5


def test_an_unknown_name_is_refused(capsys) -> None:
    assert main(["no such name"]) == 2
    assert "there is no mutant named no such name" in capsys.readouterr().err
