"""What the guard records of this checkout, and that it finds a change of every kind of thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import typer
from prometheus_client import CollectorRegistry, Counter, Gauge
from typer.main import get_command

from hack.guard import counts, manifests, names, product, record
from hack.guard.__main__ import main
from hack.guard.differences import ABSENT, Difference, compare

Change = Callable[[record.Record], Any]
TESTS = {"all": 3, "unit": 2, "cluster": 1}


def has_helm() -> bool:
    try:
        manifests.find_helm()
    except manifests.NoHelm:
        return False
    return True


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> record.Record:
    """A record of this checkout: what is cheap of it, and a seed of each mode, which stands for a second one too.

    Its processes do not yield to those of other tests, which would never let them end.
    """
    parts = {*record.PARTS} - {"tests"} - (set() if has_helm() else {"chart"})
    file = tmp_path_factory.mktemp("guard") / "record.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record.seeds, "_yield_processors", lambda: None)
        found = record.make_record(file, record.Options(parts, seeds=1))
    found["digests"] = {mode: {"0": one["0"], "1": dict(one["0"])} for mode, one in found["digests"].items()}
    return found | {"tests": TESTS} | ({} if has_helm() else {"chart": {"defaults": {"Deployment/a": {"spec": 1}}}})


# --- one change of every kind ----------------------------------------------------------------------------------------


def spec_of(found: record.Record) -> Any:
    return found["crd"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def first_object(found: record.Record) -> Any:
    return next(one for name, one in sorted(found["chart"]["defaults"].items()) if name.startswith("Deployment/"))


def swap(mapping: dict[str, Any], old: str, new: str) -> None:
    mapping[new] = mapping.pop(old)


CHANGES: dict[str, tuple[str, Change]] = {
    "a bound of the CRD": ("crd/spec/", lambda r: spec_of(r)["properties"]["rounds"].update(minimum=7)),
    "a rule of the CRD": ("crd/spec/", lambda r: spec_of(r)["x-kubernetes-validations"].pop()),
    "a field of the CRD": ("crd/spec/", lambda r: spec_of(r)["properties"].pop("rounds")),
    "an object of the chart": ("chart/defaults/", lambda r: r["chart"]["defaults"].popitem()),
    "a value in the chart": ("chart/defaults/Deployment/", lambda r: first_object(r).update(spec={})),
    "a metric": (
        "names/metrics/operator",
        lambda r: swap(r["names"]["metrics"]["operator"], "rljob_jobs", "rljob_job"),
    ),
    "a metric of the runtime": (
        "names/metrics/coordinator",
        lambda r: r["names"]["metrics"]["coordinator"].pop("rljob_coordinator_reward_failures"),
    ),
    "a label": (
        "names/metrics/coordinator/rljob_coordinator_plans/labels",
        lambda r: r["names"]["metrics"]["coordinator"]["rljob_coordinator_plans"].update(labels=["kind"]),
    ),
    "a condition": ("names/conditions/", lambda r: swap(r["names"]["conditions"], "RelayReady", "ChainReady")),
    "an event": ("names/events/", lambda r: swap(r["names"]["events"], "MachineLost", "MachineGone")),
    "a reason": ("names/reasons/", lambda r: r["names"]["reasons"].pop("ModelNotUsable")),
    "a word": ("names/words/", lambda r: r["names"]["words"].pop("TooStale")),
    "a command": ("names/command/commands", lambda r: swap(r["names"]["command"]["commands"], "simulate", "play")),
    "an option": (
        "names/command/commands/simulate/options",
        lambda r: swap(r["names"]["command"]["commands"]["simulate"]["options"], "--seeds", "--runs"),
    ),
    "a default": (
        "names/command/commands/simulate/options/--seeds/default",
        lambda r: r["names"]["command"]["commands"]["simulate"]["options"]["--seeds"].update(default="99"),
    ),
    "a choice": (
        "names/command/commands/simulate/options/--mode/choices",
        lambda r: r["names"]["command"]["commands"]["simulate"]["options"]["--mode"]["choices"].pop(),
    ),
    "an option of the operator": (
        "names/operator options/",
        lambda r: r["names"]["operator options"].pop("--workers"),
    ),
    "an argument of a process": ("names/arguments/", lambda r: r["names"]["arguments"].pop("--key-file")),
    "a variable": ("names/environment/", lambda r: swap(r["names"]["environment"], "RLJOB_UID", "RLJOB_JOB_UID")),
    "a benchmark": (
        "names/entry points/",
        lambda r: swap(r["names"]["entry points"]["rljob.benchmarks"], "planner", "plans"),
    ),
    "a digest": (
        f"digests/{product.MODES[1]}/1/digest",
        lambda r: r["digests"][product.MODES[1]]["1"].update(digest="0"),
    ),
    "a number of a status": (
        f"digests/{product.MODES[0]}/0/statuses",
        lambda r: r["digests"][product.MODES[0]]["0"].update(statuses="0"),
    ),
    "a test less": ("tests/cluster", lambda r: r["tests"].update(cluster=0)),
    "a kind of test less": ("tests/unit", lambda r: r["tests"].pop("unit")),
    "a mutant less": ("mutants/all", lambda r: r["mutants"].update(all=r["mutants"]["all"] - 1)),
}


@pytest.mark.slow  # it renders the chart and makes the CRD
def test_a_record_differs_in_nothing_from_itself(recorded: record.Record) -> None:
    assert list(record.differences(recorded, deepcopy(recorded))) == []


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found_where_it_is(recorded: record.Record, what: str) -> None:
    place, change = CHANGES[what]
    changed = deepcopy(recorded)
    change(changed)
    found = list(record.differences(recorded, changed))
    assert found
    assert all(one.place.startswith(place) for one in found), found


@pytest.mark.parametrize("part", ["tests", "mutants"])
def test_more_of_what_is_counted_is_no_difference(recorded: record.Record, part: str) -> None:
    more = recorded | {part: {name: count + 1 for name, count in recorded[part].items()}}
    assert list(record.differences(recorded, more)) == []


@pytest.mark.parametrize("part", record.PARTS)
def test_a_part_that_a_record_lacks_is_refused_and_not_passed_over(recorded: record.Record, part: str) -> None:
    lacking = {name: value for name, value in recorded.items() if name != part}
    for old, new in ((recorded, lacking), (lacking, recorded)):
        with pytest.raises(record.BadRecord, match=f"has no {part}; `--skip {part}`"):
            list(record.differences(old, new))
    assert list(record.differences(recorded, lacking, [one for one in record.PARTS if one != part])) == []


def test_records_that_share_no_seed_are_refused(recorded: record.Record) -> None:
    outcomes = {mode: {"99": outcome["0"]} for mode, outcome in recorded["digests"].items()}
    with pytest.raises(record.BadRecord, match="share no seed of mode"):
        list(record.differences(recorded, recorded | {"digests": outcomes}))


def test_fewer_seeds_are_compared_as_far_as_they_go(recorded: record.Record) -> None:
    fewer = {mode: {"0": outcome["0"]} for mode, outcome in recorded["digests"].items()}
    assert list(record.differences(recorded, recorded | {"digests": fewer})) == []
    fewer[product.MODES[0]] = {"0": fewer[product.MODES[0]]["0"] | {"events": 1}}
    (found,) = record.differences(recorded, recorded | {"digests": fewer})
    assert found.place == f"digests/{product.MODES[0]}/0/events"


# --- what is recorded ------------------------------------------------------------------------------------------------


def test_names_come_from_all_over_the_product(recorded: record.Record) -> None:
    found = recorded["names"]
    assert {"Ready", "Stalled", "CheckpointDurable", "Admitted", "Failed"} <= set(found["conditions"])
    assert {"MachineLost", "RolloutScaledUp", "RelayFormed", "StatusForged"} <= set(found["events"])
    assert {"QuotaTooSmall", "DeadlineExceeded", "HeartbeatLost", "LayoutNotUsable"} <= set(found["reasons"])
    assert {"KUBECONFIG", "RLJOB_WORKERS", "RLJOB_INCARNATION"} <= set(found["environment"])
    assert found["metrics"]["operator"]["rljob_replacements"] == {"labels": ["role", "reason"], "type": "counter"}
    assert found["command"]["commands"]["trace"]["commands"]["inspect"]["arguments"][0]["required"]
    assert recorded["mutants"]["all"] > 500
    assert all(outcome["passed"] for mode in product.MODES for outcome in recorded["digests"][mode].values())


def test_statuses_differ_by_their_numbers_and_not_by_their_names() -> None:
    def of(status: object) -> list[str]:
        return list(product.numbers(status))

    assert of({"held": {"a": [1, 2.5]}, "kind": "Long", "no": None}) == of({"loaned": {"b": (1, 2.5)}, "kind": "Plain"})
    assert of({"a": 1}) != of({"a": 2})
    assert of({"a": 1}) != of({"a": True})


def test_a_metric_has_its_labels_before_it_has_a_sample() -> None:
    registry = CollectorRegistry()
    Counter("lost", "Prose.", ["role"], registry=registry)
    Gauge("depth", "Prose.", registry=registry)
    assert names.metrics(registry) == {
        "lost": {"type": "counter", "labels": ["role"]},
        "depth": {"type": "gauge", "labels": []},
    }


def test_prose_of_a_command_is_no_name() -> None:
    def recorded_with(prose: str) -> names.Names:
        app = typer.Typer()

        @app.command(help=prose)
        def one(count: int = typer.Option(3, min=1, help=prose)) -> None: ...

        return names.command(get_command(app))

    assert recorded_with("One text.") == recorded_with("Another text.")
    assert recorded_with("One text.")["options"]["--count"]["bounds"] == [1, None]


def test_descriptions_are_dropped_and_fields_of_that_name_stay() -> None:
    schema = {"description": "prose", "properties": {"description": {"type": "string", "description": "prose"}}}
    assert manifests.undescribed([schema]) == [{"properties": {"description": {"type": "string"}}}]


def test_tests_are_counted_by_marker() -> None:
    found = counts.count_by_marker([frozenset(), frozenset({"slow"}), frozenset({"engine", "asyncio"})])
    assert (found["all"], found["unit"], found["slow"], found["engine"], found["gpu"]) == (3, 2, 1, 1, 0)


def test_tests_that_are_deselected_count_too(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_collection_modifyitems(items): del items[1:]")
    rows = "import pytest\n@pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.slow)])\n"
    (tmp_path / "test_one.py").write_text(f"{rows}def test_it(x): ...\n")
    found = counts.count_tests(tmp_path)
    assert (found["all"], found["unit"], found["slow"]) == (2, 2, 1)


def test_a_test_file_that_cannot_be_collected_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("import nothing_of_this_name")
    with pytest.raises(counts.NotCollected, match="nothing_of_this_name"):
        counts.count_tests(tmp_path)


def test_mutants_are_counted_wherever_a_package_lists_them(tmp_path: Path) -> None:
    for name, text in (("a/mutants.py", "M = (Mutant(1), Mutant(2))"), ("b/mutants_more.py", "Mutant(3)\nOther(4)")):
        (tmp_path / "tests" / name).parent.mkdir(parents=True)
        (tmp_path / "tests" / name).write_text(text)
    assert counts.count_mutants(tmp_path) == 3


# --- differences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, [Difference("a", "1", "2")]),
        ({"a": 1}, {"a": True}, [Difference("a", "1", "true")]),
        ({"a": 1}, {"a": 1.0}, [Difference("a", "1", "1.0")]),
        ({"a": 1}, {}, [Difference("a", "1", ABSENT)]),
        ({}, {"a": None}, [Difference("a", ABSENT, "null")]),
        ({"a": {"b": [1]}}, {"c": {"b": [1]}}, [Difference("(key)", "a", "c")]),
        ({"a": True}, {"c": True}, [Difference("a", "true", ABSENT), Difference("c", ABSENT, "true")]),
        ({"a": [1, 2]}, {"a": [2, 1]}, [Difference("a", "[1, 2]", "[2, 1]")]),
        ([{"name": "a", "x": 1}], [{"name": "b"}, {"name": "a", "x": 2}], [
            Difference("a/x", "1", "2"), Difference("b", ABSENT, '{"name": "b"}')
        ]),
        ([{"x": 1}, {"x": 2}], [{"x": 1}, {"x": 3}], [Difference("1/x", "2", "3")]),
        ([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}], [
            Difference("(order)", '["a", "b"]', '["b", "a"]')
        ]),
    ],
)  # fmt: skip
def test_a_difference_names_its_place(old: Any, new: Any, found: list[Difference]) -> None:
    assert list(compare(old, new)) == found


# --- the command -----------------------------------------------------------------------------------------------------

QUICK = [argument for part in ("chart", "names", "tests", "digests") for argument in ("--skip", part)]


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """A record whose CRD has another bound for rounds than this checkout's."""
    file = tmp_path / "record.json"
    assert main(["record", str(file), *QUICK]) == 0
    found = json.loads(file.read_text())
    spec_of(found)["properties"]["rounds"]["minimum"] = 7
    file.write_text(json.dumps(found))
    return file


def test_compare_prints_a_line_for_each_difference_and_fails(
    edited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(edited), "--now", str(tmp_path / "now.json"), *QUICK]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("crd/spec/versions/v1alpha1/")
    assert line.endswith("/properties/rounds/minimum: 7 -> 1")


@pytest.mark.parametrize(("old", "status"), [("7", 0), ("'*'", 0), ("8", 1)])
def test_an_allowed_difference_is_subtracted(
    edited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, status: int
) -> None:
    allowed = tmp_path / "allowed.yaml"
    allowed.write_text(f"- {{place: crd/*/rounds/minimum, old: {old}, new: 1, why: a test}}\n")
    arguments = ["compare", str(edited), "--now", str(tmp_path / "now.json"), "--allowed", str(allowed), *QUICK]
    assert main(arguments) == status
    assert ("nothing differs as allowed" in capsys.readouterr().err) == bool(status)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "a list of rows with place, old, new, why would be right"),
        ("- one", "row 1: 'one'; a mapping"),
        ("- {old: 1, new: 2, wy: x}", "'wy' is unknown"),
        ("- {old: 1, new: 2}", "row 1: why is missing"),
        ("- {old: 1, new: 2, why: '*'}", "the reason of the change would be right"),
    ],
)
def test_a_bad_row_of_allowed_differences_is_told(
    edited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    allowed = tmp_path / "allowed.yaml"
    allowed.write_text(text)
    assert main(["compare", str(edited), "--allowed", str(allowed), *QUICK]) == 2
    assert told in capsys.readouterr().err


def test_a_record_of_other_sources_is_not_written_over(edited: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited.write_text(json.dumps(json.loads(edited.read_text()) | {"code": "other"}))
    before = edited.read_text()
    assert main(["record", str(edited), *QUICK]) == 2
    assert "a record of other sources" in capsys.readouterr().err
    assert edited.read_text() == before


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_seeds_go_on_where_a_run_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of the same sources count, and those of other sources do not."""
    played: list[object] = []

    def play(todo: Any, known: Any, jobs: int, keep: Any) -> Any:
        played.append(known)
        return {mode: {"0": {"digest": "a"}} for mode in product.MODES}

    monkeypatch.setattr(record.seeds, "play_seeds", play)
    file, options = tmp_path / "record.json", record.Options(("digests",), seeds=1)
    first = record.make_record(file, options)
    record.make_record(file, options)
    monkeypatch.setattr(record, "fingerprint", lambda root: "other")
    record.make_record(file, options)
    assert played == [{}, first["digests"], {}]


def test_a_skipped_part_keeps_the_record_of_the_same_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "record.json"
    first = record.make_record(file, record.Options(("crd",)))
    both = record.make_record(file, record.Options(("mutants",)))
    assert both["crd"] == first["crd"]
    assert both["mutants"]["all"] > 0
    monkeypatch.setattr(record, "fingerprint", lambda root: "other")
    assert "crd" not in record.make_record(file, record.Options(("mutants",)))


def test_sources_that_change_while_seeds_run_spoil_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prints = iter(["before", "after"])
    monkeypatch.setattr(record, "fingerprint", lambda root: next(prints))
    file = tmp_path / "record.json"
    with pytest.raises(record.TreeChanged, match="sources changed"):
        record.make_record(file, record.Options(("mutants",)))
    assert not file.exists()


def test_known_seeds_are_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {mode: {"0": {"digest": "known"}} for mode in product.MODES}
    kept: list[tuple[int, int]] = []
    found = record.seeds.play_seeds(
        record.seeds.wanted(1), known, 1, lambda outcomes, done, goal: kept.append((done, goal))
    )
    assert (found, kept) == (known, [])
