"""`rljob trace inspect`, `fit` and `convert`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rljob_runtime.cli.trace import trace
from rljob_runtime.workloads import Generator, WorkloadParameters, names, open_workload, parameters
from tests.support.traces import distribution_file, lengths, multi_turn_folder, single_turn_folder, write


def run(*arguments: object) -> Result:
    return CliRunner().invoke(trace, list(map(str, arguments)), env={"COLUMNS": "160"})


def test_inspect_prints_and_writes(tmp_path: Path) -> None:
    folder, written = single_turn_folder(tmp_path / "math-7b"), tmp_path / "found.json"
    done = run("inspect", folder, "--json", written)
    assert done.exit_code == 0, done.output
    for text in ("math-7b", "share of the longest 20 %", "reward, seconds", "kept by dynamic sampling", "50.0%"):
        assert text in done.output
    assert "tool calls" not in done.output, "what was not recorded is left out"
    assert "note: dapo_filter_indices.jsonl:2: step 11 is not in the folder" in done.output
    found = json.loads(written.read_text())
    assert (found["task"], found["prompts"], found["responses"]) == ("math-7b", 8, 16)
    assert [step["step"] for step in found["steps"]] == [2, 10]
    assert found["skipped"] == []


@pytest.mark.parametrize("kind", [single_turn_folder, multi_turn_folder])
@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_inspect_plots(kind: object, ending: str, start: bytes, tmp_path: Path) -> None:
    assert callable(kind)
    picture = tmp_path / f"picture.{ending}"
    done = run("inspect", kind(tmp_path / "trace"), "--plot", picture)
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(start)


def test_inspect_shows_tools(tmp_path: Path) -> None:
    done = run("inspect", multi_turn_folder(tmp_path))
    for text in ("tool calls", "tool call, seconds", "tool answer, tokens", "turns"):
        assert text in done.output


def test_inspect_refuses_or_skips_bad_rows(tmp_path: Path) -> None:
    rows = [lengths(0, 0, 5, [3, 4]), lengths(0, 1, 5, [3, -4]), lengths(0, 2, 5, [5, 6])]
    path = write(tmp_path / "packed_lengths_step_0.jsonl", rows)
    refused = run("inspect", tmp_path)
    assert refused.exit_code == 2
    assert f"{path}:2: field output[1] is -4" in refused.output
    assert "Traceback" not in refused.output
    skipped = run("inspect", tmp_path, "--skip-bad", "--json", tmp_path / "found.json")
    assert skipped.exit_code == 0, skipped.output
    assert f"skipped: {path}:2: field output[1] is -4" in skipped.output.replace("\n", "")
    assert "1 rows skipped" in skipped.output
    assert len(json.loads((tmp_path / "found.json").read_text())["skipped"]) == 1


def test_what_cannot_be_used_is_said_in_a_line(tmp_path: Path) -> None:
    folder = single_turn_folder(tmp_path / "trace")
    cases = [
        (("inspect", tmp_path / "missing"), "is no folder"),
        (("inspect", tmp_path), "its folders do; one of trace would be right"),
        (("inspect", folder, "--plot", tmp_path / "picture.nonsense"), "cannot be written"),
        (("inspect", folder, "--json", tmp_path / "missing" / "x.json"), "cannot be written"),
        (("fit", tmp_path / "missing", "--json", tmp_path / "x.json"), "is no folder"),
        (("convert", tmp_path / "missing", tmp_path, "--tool-seconds", tmp_path / "x.json"), "cannot be read"),
    ]
    for arguments, reason in cases:
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        assert reason in done.output
        assert "Traceback" not in done.output


def test_fit_writes_a_generator(tmp_path: Path) -> None:
    written = tmp_path / "own.json"
    done = run("fit", multi_turn_folder(tmp_path / "tools"), "--json", written, "--source", "a test")
    assert done.exit_code == 0, done.output
    assert "trace" in done.output
    assert "generator" in done.output
    found = WorkloadParameters.load(written)
    assert (found.task, found.source) == ("tools", "a test")
    assert isinstance(open_workload(str(written), 0), Generator)


def test_convert_writes_two_generators(tmp_path: Path) -> None:
    parameters("search-r1-7b").save(tmp_path / "search.json")
    file = distribution_file(tmp_path / "distribution.json")
    done = run("convert", file, tmp_path, "--tool-seconds", tmp_path / "search.json", "--cap", 9000)
    assert done.exit_code == 0, done.output
    assert WorkloadParameters.load(tmp_path / "math-235b.json").tool_use is None
    assert WorkloadParameters.load(tmp_path / "tools-235b.json").tool_use is not None
    parameters("dapo-32b").save(tmp_path / "plain.json")
    refused = run("convert", file, tmp_path, "--tool-seconds", tmp_path / "plain.json")
    assert refused.exit_code == 2
    assert "plain.json: field tool_use is missing" in refused.output


def test_every_trace_family_ships() -> None:
    assert set(names()) == {
        *("rollpacker-7b-8k", "rollpacker-14b-16k", "rollpacker-32b-32k"),
        *("dapo-32b", "deepcoder-14b-16k", "video-7b", "search-r1-7b", "math-235b", "tools-235b"),
    }
