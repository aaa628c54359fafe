"""A job's lengths as a trace: read back, it says what the job had."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rljob_runtime.cli.trace import trace
from rljob_runtime.samples.lengths import LengthFolder, PromptLengths, export
from rljob_runtime.workloads import TraceError, open_workload
from rljob_runtime.workloads.summary import summarise
from rljob_runtime.workloads.trace import read_trace

PROMPTS = st.lists(
    st.builds(
        PromptLengths,
        st.integers(1, 5000),
        st.lists(st.integers(1, 40_000), min_size=1, max_size=5).map(tuple),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(rounds=st.dictionaries(st.integers(1, 10**6), PROMPTS, min_size=1, max_size=4))
def test_what_is_written_is_read_back(rounds, tmp_path_factory):
    job = tmp_path_factory.mktemp("job")
    for number, prompts in sorted(rounds.items()):
        LengthFolder(job).write(number, prompts, keep=10**6)
    found = export(job, job / "trace")
    steps = {step.number: step for step in read_trace(job / "trace").steps}
    assert sorted(steps) == sorted(rounds)
    filtered = any(not one.kept for prompts in rounds.values() for one in prompts)
    for number, prompts in rounds.items():
        read = [
            (one.input_tokens, tuple(response.output_tokens for response in one.responses), one.kept)
            for one in steps[number].prompts
        ]
        assert read == [(one.prompt, one.responses, one.kept if filtered else None) for one in prompts]
    everyone = [one for prompts in rounds.values() for one in prompts]
    assert found.responses == sum(len(one.responses) for one in everyone)
    statistics = summarise("job", read_trace(job / "trace").steps)
    lengths = [length for one in everyone for length in one.responses]
    assert statistics.output_tokens.mean == pytest.approx(sum(lengths) / len(lengths))
    assert statistics.output_tokens.longest == max(lengths)


def run(*arguments: object):
    return CliRunner().invoke(trace, list(map(str, arguments)), env={"COLUMNS": "160"})


def test_the_command_writes_a_trace_that_the_simulator_plays(tmp_path: Path) -> None:
    LengthFolder(tmp_path).write(3, [PromptLengths(7, (3, 9), True), PromptLengths(8, (4,), True)], keep=5)
    done = run("export", tmp_path)
    assert done.exit_code == 0, done.output
    assert f"{tmp_path}/trace: 1 rounds, 2 prompts, 3 responses" in done.output
    drawn = open_workload(str(tmp_path / "trace"), seed=1).prompt(0, 0, responses=2)
    assert {response.output_tokens for response in drawn.responses} <= {3, 4, 9}
    assert not (tmp_path / "trace/dapo_filter_indices.jsonl").exists(), "nothing was filtered"
    assert run("inspect", tmp_path / "trace").exit_code == 0


def test_what_cannot_be_exported_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    LengthFolder(tmp_path / "run").write(1, [PromptLengths(7, (3,), True)], keep=5)
    LengthFolder(tmp_path / "bad").write_lines(1, [json.dumps({"step": 1})], keep=5)
    export(tmp_path / "run", tmp_path / "taken")
    (tmp_path / "file").write_text("in the way")
    cases = [
        ((tmp_path / "missing",), "missing is no folder"),
        ((tmp_path / "empty",), "has no lengths: no round has ended"),
        ((tmp_path / "bad",), "round-000001.jsonl:1: not a row of lengths: KeyError('kept')"),
        ((tmp_path / "run", "--out", tmp_path / "taken"), "holds a trace already"),
        ((tmp_path / "run", "--out", tmp_path / "file"), "cannot be written"),
    ]
    for arguments, reason in cases:
        done = run("export", *arguments)
        assert done.exit_code == 2, done.output
        assert reason in done.output.replace("\n", "")
        assert "Traceback" not in done.output


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    LengthFolder(tmp_path).write_lines(1, ['{"step": 1, "inp'], keep=5)
    with pytest.raises(TraceError, match=r"round-000001.jsonl:1"):
        export(tmp_path, tmp_path / "trace")
