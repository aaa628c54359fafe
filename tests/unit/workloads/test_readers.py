"""Every format of PolyTrace is read; every bad row is refused with file and line, or skipped and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.workloads import Findings, ToolCall, TraceError, Turn, read_steps, read_trace
from rljob_runtime.workloads.distribution import DistributionParameters
from rljob_runtime.workloads.rows import LengthsRow, MultiTurnRow, read_rows
from tests.support.traces import (
    distribution_file,
    kept,
    lengths,
    multi_turn,
    multi_turn_folder,
    single_turn_folder,
    timing,
    write,
)


def test_single_turn_with_rewards_and_filter(tmp_path: Path) -> None:
    trace = read_trace(single_turn_folder(tmp_path / "math-7b"))
    assert trace.task == "math-7b"
    assert [step.number for step in trace.steps] == [2, 10], "by number, not by name"
    first = trace.steps[0].prompts
    assert [prompt.input_tokens for prompt in first] == [100, 101, 102, 103]
    assert [[response.output_tokens for response in prompt.responses] for prompt in first] == [
        [20, 7],
        [21, 7],
        [22, 7],
        [23, 7],
    ]
    assert [prompt.responses[0].reward_seconds for prompt in first] == [2.0, 4.0, 2.0, 4.0], "by the prompt's rank"
    assert [prompt.kept for prompt in first] == [True, False, False, True]
    assert {prompt.kept for prompt in trace.steps[1].prompts} == {None}, "step 10 has no row in the filter"
    assert trace.findings.notes == ["dapo_filter_indices.jsonl:2: step 11 is not in the folder"]


def test_lengths_alone(tmp_path: Path) -> None:
    write(tmp_path / "packed_lengths_step_0.jsonl", [lengths(0, 0, 5, [3, 0])])
    (prompt,) = read_trace(tmp_path).steps[0].prompts
    assert prompt.kept is None
    assert [response.reward_seconds for response in prompt.responses] == [None, None]
    assert [response.output_tokens for response in prompt.responses] == [3, 1], "an end token at least"


def test_multi_turn(tmp_path: Path) -> None:
    (step,) = read_trace(multi_turn_folder(tmp_path)).steps
    assert [(prompt.index, len(prompt.responses)) for prompt in step.prompts] == [(0, 1), (1, 2)]
    response = step.prompts[1].responses[0]
    assert response.turns == (
        Turn(5, (ToolCall(0.25, 30),)),
        Turn(8, (ToolCall(1.0, 20), ToolCall(3.0, 10))),
        Turn(2),
    )
    assert response.output_tokens == 15
    assert response.tool_tokens == 60
    assert response.tool_seconds == 3.25, "calls of one turn run side by side"


def test_validation_rows_are_no_training(tmp_path: Path) -> None:
    rows = [lengths(0, 0, 5, [3]), lengths(0, 1, 5, [99], validate=True)]
    write(tmp_path / "packed_lengths_step_0.jsonl", rows)
    write(tmp_path / "reward_timings_step_0.jsonl", [timing(0, 0, 1, 99.0, validate=True), timing(0, 0, 1, 2.0)])
    (prompt,) = read_trace(tmp_path).steps[0].prompts
    assert (prompt.responses[0].output_tokens, prompt.responses[0].reward_seconds) == (3, 2.0)


GOOD = json.dumps(lengths(0, 0, 5, [3, 4]))
BAD_LENGTHS = {
    "negative": (lengths(0, 1, 5, [3, -4]), "field output[1] is -4: input should be greater than or equal to 0"),
    "absurd": (lengths(0, 1, 5, [3, 10**9]), "field output[1] is 1000000000: input should be less than or equal"),
    "text": (lengths(0, 1, 5, ["3"]), "field output[0] is '3': input should be a valid integer"),
    "fraction": (lengths(0, 1, 5, [3.5]), "field output[0] is 3.5: input should be a valid integer"),
    "truth": (lengths(0, 1, 5, [True]), "field output[0] is True: input should be a valid integer"),
    "null": (lengths(0, 1, 5, [None]), "field output[0] is None: input should be a valid integer"),
    "none": (lengths(0, 1, 5, []), "field output is []: list should have at least 1 item"),
    "no prompt": (lengths(0, 1, 0, [3]), "field input is 0: input should be greater than or equal to 1"),
    "short": (lengths(0, 1, 5, [3], n_sampling=2), "output has 1 lengths; n_sampling 2 would be right"),
    "missing": ({"step": 0, "local_index": 1, "output": [3], "n_sampling": 1}, "field input is missing"),
    "two": ({"step": 0, "local_index": 1, "n_sampling": 1}, "field input is missing (and 1 more)"),
    "list": ([1, 2], "input should be an object"),
    "other step": (lengths(7, 1, 5, [3]), "field step is 7: 0, as the file's name says, would be right"),
    "twice": (lengths(0, 0, 5, [3]), "dp_rank 0, local_index 0 was there before"),
}


@pytest.mark.parametrize("name", BAD_LENGTHS)
def test_bad_lengths(name: str, tmp_path: Path) -> None:
    row, reason = BAD_LENGTHS[name]
    path = tmp_path / "packed_lengths_step_0.jsonl"
    path.write_text(f"{GOOD}\n\n{json.dumps(row)}\n")
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path)
    assert str(refused.value).lower().startswith(f"{path}:3: {reason}".lower())
    findings = Findings(skip_bad=True)
    (step,) = read_trace(tmp_path, findings).steps
    assert len(step.prompts) == 1
    assert [bad.startswith(f"{path}:3: ") for bad in findings.bad] == [True]


BROKEN: dict[str, bytes] = {
    "cut off": b'{"step": 0, "input": 5, "out',
    "no JSON": b"step=0 input=5",
    "NaN": b'{"step": 0, "local_index": 1, "input": NaN, "output": [3], "n_sampling": 1}',
    "not UTF-8": b'{"step": 0, "note": "\xff"}',
    "null bytes": b"\x00\x00\x00",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_lines(name: str, tmp_path: Path) -> None:
    path = tmp_path / "packed_lengths_step_0.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n" + BROKEN[name])
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path)
    assert str(refused.value).startswith(f"{path}:2: ")
    findings = Findings(skip_bad=True)
    assert len(read_trace(tmp_path, findings).steps[0].prompts) == 1
    assert len(findings.bad) == 1


@given(st.binary(max_size=60))
def test_any_line_is_a_row_or_a_finding(tmp_path_factory: pytest.TempPathFactory, line: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "packed_lengths_step_0.jsonl"
    path.write_bytes(GOOD.encode() + b"\n" + line + b"\n" + GOOD.encode() + b"\n")
    findings = Findings(skip_bad=True)
    read = list(read_rows(path, LengthsRow, findings))
    lines = sum(1 for part in path.read_bytes().split(b"\n") if part.strip())
    assert len(read) >= 2
    assert len(read) + len(findings.bad) == lines


BAD_MULTI_TURN: dict[str, tuple[dict[str, Any], str]] = {
    "turns": (multi_turn(0, 0, 1, [5], [], turn_count=2), "1 turns; turn_count 2 would be right"),
    "calls": (multi_turn(0, 0, 1, [5], [], tool_call_count=2), "0 tool_calls; tool_call_count 2 would be right"),
    "no turns": (multi_turn(0, 0, 1, [], []), "field turns is []: list should have at least 1 item"),
    "place": (multi_turn(0, 0, 1, [5], [(1, 0.5, 3)]), "tool_calls[0].turn is 1; below 1 would be right"),
    "seconds": (
        multi_turn(0, 0, 1, [5, 5], [(0, -0.5, 3)]),
        "field tool_calls[0].latency_s is -0.5: input should be greater than or equal to 0",
    ),
    "tokens": (
        multi_turn(0, 0, 1, [5, -5], []),
        "field turns[1].completion_tokens is -5: input should be greater than or equal to 0",
    ),
    "numbers": (
        multi_turn(0, 0, 1, [5], [], turns=[{"turn": 3, "completion_tokens": 5}]),
        "turns are numbered [3]; 0, 1, 2, … would be right",
    ),
    "twice": (multi_turn(0, 0, 0, [5], []), "prompt_group_id 0, sample_id 0 was there before"),
    "prompt": (
        multi_turn(0, 0, 1, [5], [], prompt_len=12),
        "field prompt_len is 12: 300, as in the rest of its group, would be right",
    ),
    "step": (multi_turn(4, 0, 1, [5], []), "field step is 4: 0, as the file's name says, would be right"),
}


@pytest.mark.parametrize("name", BAD_MULTI_TURN)
def test_bad_multi_turn_rows(name: str, tmp_path: Path) -> None:
    row, reason = BAD_MULTI_TURN[name]
    path = write(tmp_path / "multiturn_workload_step_0.jsonl", [multi_turn(0, 0, 0, [5], []), row])
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path)
    assert str(refused.value).startswith(f"{path}:2: {reason}")
    findings = Findings(skip_bad=True)
    assert [len(prompt.responses) for prompt in read_trace(tmp_path, findings).steps[0].prompts] == [1]
    assert len(findings.bad) == 1


BAD_REWARDS = {
    "negative": (timing(0, 1, 4, -1.0), "field reward_time_s is -1.0"),
    "no batch": (timing(0, 1, 0, 1.0), "field batch_size is 0"),
    "other step": (timing(3, 1, 4, 1.0), "field step is 3: 0"),
    "twice": (timing(0, 0, 4, 1.0), "dp_rank 0 was there before"),
}


@pytest.mark.parametrize("name", BAD_REWARDS)
def test_bad_rewards(name: str, tmp_path: Path) -> None:
    row, reason = BAD_REWARDS[name]
    write(tmp_path / "packed_lengths_step_0.jsonl", [lengths(0, 0, 5, [3])])
    path = write(tmp_path / "reward_timings_step_0.jsonl", [timing(0, 0, 4, 2.0), row])
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path)
    assert str(refused.value).startswith(f"{path}:2: {reason}")
    findings = Findings(skip_bad=True)
    assert read_trace(tmp_path, findings).steps[0].prompts[0].responses[0].reward_seconds == 0.5
    assert len(findings.bad) == 1


BAD_FILTERS = {
    "outside": (kept(0, 2, [0, 2]), "kept_prompt_indices names prompt 2; below prompt_count 2 would be right"),
    "twice": (kept(0, 2, [0, 0]), "kept_prompt_indices names a prompt twice"),
    "negative": (kept(0, 2, [-1]), "field kept_prompt_indices[0] is -1"),
    "other run": (kept(0, 3, [0]), "field prompt_count is 3: 2, as the step has training rows, would be right"),
}


@pytest.mark.parametrize("name", BAD_FILTERS)
def test_bad_filters(name: str, tmp_path: Path) -> None:
    row, reason = BAD_FILTERS[name]
    write(tmp_path / "packed_lengths_step_0.jsonl", [lengths(0, place, 5, [3]) for place in range(2)])
    path = write(tmp_path / "dapo_filter_indices.jsonl", [row])
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path)
    assert str(refused.value).startswith(f"{path}:1: {reason}")
    findings = Findings(skip_bad=True)
    assert [prompt.kept for prompt in read_trace(tmp_path, findings).steps[0].prompts] == [None, None]
    assert len(findings.bad) == 1


def test_filter_counts_the_skipped_row_too(tmp_path: Path) -> None:
    rows = [lengths(0, 0, 5, [-3]), lengths(0, 1, 5, [3]), lengths(0, 2, 5, [3])]
    write(tmp_path / "packed_lengths_step_0.jsonl", rows)
    write(tmp_path / "dapo_filter_indices.jsonl", [kept(0, 3, [1])])
    (step,) = read_trace(tmp_path, Findings(skip_bad=True)).steps
    assert [(prompt.index, prompt.kept) for prompt in step.prompts] == [(1, True), (2, False)]


def test_filter_counts_neither_blank_lines_nor_validation_rows(tmp_path: Path) -> None:
    validation = lengths(0, 7, 5, [9], validate=True)
    rows = [validation, lengths(0, 0, 50, [3]), validation, lengths(0, 1, 51, [3]), lengths(0, 2, 52, [3])]
    path = write(tmp_path / "packed_lengths_step_0.jsonl", rows)
    path.write_text("\n" + path.read_text().replace("}\n", "}\n\n"))
    write(tmp_path / "dapo_filter_indices.jsonl", [kept(0, 3, [0, 2])])
    (step,) = read_trace(tmp_path).steps
    assert [(one.index, one.input_tokens, one.kept) for one in step.prompts] == [
        (0, 50, True),
        (1, 51, False),
        (2, 52, True),
    ]


def test_an_index_beyond_the_training_rows_is_refused(tmp_path: Path) -> None:
    """Four lines, but two prompts: no index 3."""
    rows = [lengths(0, place, 5, [3], validate=place > 1) for place in range(4)]
    write(tmp_path / "packed_lengths_step_0.jsonl", rows)
    path = write(tmp_path / "dapo_filter_indices.jsonl", [kept(0, 4, [3])])
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path)
    assert str(refused.value) == f"{path}:1: field prompt_count is 4: 2, as the step has training rows, would be right"


def test_folders_that_are_no_trace(tmp_path: Path) -> None:
    inner = single_turn_folder(tmp_path / "inner")
    with pytest.raises(TraceError, match="holds no trace: its folders do; one of inner would be right"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="is no folder"):
        read_trace(tmp_path / "missing")
    with pytest.raises(TraceError, match="is no folder"):
        read_trace(inner / "packed_lengths_step_2.jsonl")
    write(inner / "multiturn_workload_step_0.jsonl", [])
    with pytest.raises(TraceError, match="holds single-turn and multi-turn files"):
        read_trace(inner)


def test_a_trace_without_a_row(tmp_path: Path) -> None:
    path = write(tmp_path / "packed_lengths_step_0.jsonl", [])
    with pytest.raises(TraceError, match=f"{path}:1: the file holds no rows"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="no step has a row that can be used"):
        read_trace(tmp_path, Findings(skip_bad=True))


def test_the_same_step_twice(tmp_path: Path) -> None:
    for name in ("packed_lengths_step_1.jsonl", "packed_lengths_step_01.jsonl"):
        write(tmp_path / name, [lengths(1, 0, 5, [3])])
    with pytest.raises(TraceError, match="are the same step"):
        read_trace(tmp_path)


def test_rewards_without_lengths_are_told(tmp_path: Path) -> None:
    write(tmp_path / "packed_lengths_step_0.jsonl", [lengths(0, 0, 5, [3])])
    write(tmp_path / "reward_timings_step_1.jsonl", [timing(1, 0, 1, 1.0)])
    assert read_trace(tmp_path).findings.notes == ["reward_timings_step_1.jsonl has no lengths beside it"]


def test_reading_is_lazy(tmp_path: Path) -> None:
    write(tmp_path / "packed_lengths_step_0.jsonl", [lengths(0, 0, 5, [3])])
    write(tmp_path / "packed_lengths_step_1.jsonl", [lengths(1, 0, 5, [-3])])
    steps = read_steps(tmp_path, Findings())
    assert next(steps).number == 0
    with pytest.raises(TraceError, match=r"packed_lengths_step_1.jsonl:1: field output\[0\]"):
        next(steps)
    rows = read_rows(write(tmp_path / "rows.jsonl", [multi_turn(0, 0, 0, [5], []), "broken"]), MultiTurnRow, Findings())
    assert next(rows)[0] == 1
    with pytest.raises(TraceError, match=r"rows\.jsonl:2"):
        next(rows)


def test_distribution_parameters(tmp_path: Path) -> None:
    found = DistributionParameters.load(distribution_file(tmp_path / "parameters.json"))
    assert len(found.math_task.gmm_parameters.weights) == 2
    assert found.tool_calling_task.call_count_distribution == {1: 10, 2: 30}


def test_bad_distribution_parameters(tmp_path: Path) -> None:
    path = tmp_path / "parameters.json"
    mixture = {"weights": [1.0], "means": [], "covariances": []}
    task = {"joint_distribution": {"correlation": 0}, "gmm_parameters": mixture}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"math_task": {}}, "field math_task.gmm_parameters is missing"),
        ({"math_task": task}, "1 weights, 0 means, 0 covariances; as many of each would be right"),
        (
            {"tool_calling_task": {"call_count_distribution": {"3": 1}, "sequence_models": {}}},
            "sequence_models has no model of 3 calls",
        ),
    ]
    for changed, reason in cases:
        distribution_file(path, changed)
        with pytest.raises(TraceError) as refused:
            DistributionParameters.load(path)
        assert str(path) in str(refused.value)
        assert reason in str(refused.value)
    with pytest.raises(TraceError, match="cannot be read"):
        DistributionParameters.load(tmp_path / "missing.json")
