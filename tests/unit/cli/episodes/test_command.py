"""`rljob episodes FOLDER`: a table for people, and ATIF whose tokens are those of the store."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_runtime.cli import app
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.samples import EvaluationSampleFolder, SampleFolder
from rljob_runtime.samples.episode import SampleCall, SampleEpisode, SampleTurn
from rljob_runtime.scheduling.episodes.ends import EndState, EpisodeEnd
from rljob_runtime.scheduling.evaluation import evaluation_key
from tests.support.kept_run import write_run
from tests.support.sample_episodes import episode_sample
from tests.support.stored_episodes import given, sampled

RUN = CliRunner()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "my-agent"
    folder.mkdir()
    write_run(folder)
    return folder


def documents(*arguments: str) -> list[dict]:
    done = RUN.invoke(app, ["episodes", *arguments, "--format", "atif"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_table_has_ends_turns_tokens_and_seconds(run):
    shown = RUN.invoke(app, ["episodes", str(run)], env={"COLUMNS": "200"}).output
    lines = [line.split() for line in shown.splitlines()]
    assert lines[1] == [
        "1",
        "0.0.0",
        "calc",
        "truncated:",
        "turns",
        "0.5",
        "1",
        "3",
        "1",
        "4",
        "6",
        "2.5",
        "s",
        "4.5",
        "s",
    ]
    assert lines[2] == ["2", "0.1.0", "calc", "completed", "1", "1", "1", "0", "1", "1"], (
        "no time of its request is known"
    )
    only = RUN.invoke(app, ["episodes", str(run), "--attempt", "2"]).output
    assert len(only.splitlines()) == 2


@pytest.mark.parametrize("form", ["table", "atif"])
def test_where_no_episode_is_kept_it_is_said_beside_the_output(run, form):
    done = RUN.invoke(app, ["episodes", str(run), "--round", "7", "--format", form])
    assert done.exit_code == 0
    told = done.stdout if form == "table" else done.stderr
    assert told.startswith("no such episode is kept: ")
    assert form == "table" or done.stdout == ""


def test_a_trajectory_has_the_stores_tokens_and_the_samples_texts(run):
    first, branch, bare = documents(str(run))
    assert [(one["schema_version"], one["session_id"], one["trajectory_id"]) for one in (first, branch, bare)] == [
        ("ATIF-v1.8", "my-agent/0.0.0", "1-4"),
        ("ATIF-v1.8", "my-agent/0.0.0", "1-6"),
        ("ATIF-v1.8", "my-agent/0.1.0", "2-2"),
    ]
    assert [(step["source"], step["message"]) for step in first["steps"]] == [
        ("system", "S"), ("user", "Q"), ("agent", "I add."), ("agent", "It is 3.")
    ]  # fmt: skip
    asked, answered = first["steps"][2:]
    assert asked["tool_calls"] == [{"tool_call_id": "call_2_0", "function_name": "add", "arguments": {"a": 1}}]
    assert asked["observation"] == {"results": [{"content": "3", "source_call_id": "call_2_0"}]}
    assert asked["timestamp"] == "1970-01-01T00:00:12.500+00:00"
    metrics = answered["metrics"]
    assert metrics["prompt_token_ids"] == [1, 1, 1, 3, 4, 4]
    assert metrics["completion_token_ids"] == [5, 6]
    assert array("f", metrics["logprobs"]) == array("f", [-0.5, -0.6])
    assert metrics["extra"] == {"weight_version": 1, "finish_reason": "stop", "node": 4}
    assert first["extra"] == {
        "attempt": 1, "state": "truncated", "end": "turns", "reward": 0.5, "metrics": {"calls": 1.0}, "round": 1
    }  # fmt: skip
    assert [step["message"] for step in bare["steps"]] == [""]
    assert "No sample of this episode is kept" in bare["notes"]


def test_the_agent_has_the_names_of_the_tools_that_it_was_offered(run):
    """One that was never called too. Only names are kept, so the standard's definitions of tools are absent."""
    agents = [one["agent"] for one in documents(str(run))]
    assert [one.get("extra") for one in agents] == [{"tools": ["add", "subtract"]}] * 2 + [None]
    assert {(one["name"], one["model_name"], "tool_definitions" in one) for one in agents} == {
        ("calc", "my-agent", False)
    }


def test_an_attempt_of_an_evaluation_has_the_texts_of_its_sample(run):
    store = Store(run / "state.db", "uid-1")
    for index, name in enumerate(("held", "held", "other")):
        number = store.turns.begin(TrajectoryKey(evaluation_key(name, 1, index), 0), 1, 30.0, "calc")
        store.turns.commit(number, [given(1, 0, 1), sampled(2, 1, 9)], b"{}", 31.0)
        store.turns.end(number, EpisodeEnd(EndState.COMPLETED), 32.0, 1.0)
    store.close()
    for name, attempt in (("held", 3), ("other", 5)):
        texts = SampleEpisode("calc", attempt=attempt, turns=(SampleTurn(2, sampled=f"Of {name}."),))
        EvaluationSampleFolder(run, name).write(1, [episode_sample(texts)], keep=9)
    *_, first, second, third = documents(str(run))
    assert [one["session_id"] for one in (first, second, third)] == [
        "my-agent/evaluation:held/1.0.0", "my-agent/evaluation:held/1.1.0", "my-agent/evaluation:other/1.2.0"
    ]  # fmt: skip
    assert [one["steps"][-1]["message"] for one in (first, second, third)] == ["Of held.", "", "Of other."]
    assert ["notes" in one for one in (first, second, third)] == [False, True, False]


def test_each_sampled_token_is_in_one_step_that_is_no_copy(run):
    """A turn above a fork is trained on in the first branch only."""
    fresh = [
        token
        for document in documents(str(run))
        for step in document["steps"]
        if step["source"] == "agent" and not step.get("is_copied_context")
        for token in step["metrics"]["completion_token_ids"]
    ]
    assert fresh == [3, 5, 6, 8, 9]
    _, branch, _ = documents(str(run))
    assert [step.get("is_copied_context") for step in branch["steps"]] == [True, True, True, None, None]


def test_the_format_is_that_of_its_own_package(run):
    atif = pytest.importorskip("atif", reason="pip install atif==1.8.0")
    for document in documents(str(run)):
        read = atif.Trajectory.model_validate(document)
        assert read.to_json_dict() == document
        for step in read.steps:
            if step.source == "agent":
                assert len(step.metrics.logprobs) == len(step.metrics.completion_token_ids)
                assert all(map(math.isfinite, step.metrics.logprobs))


@pytest.mark.parametrize("text", ["{broken", "[1]"])
def test_arguments_that_are_no_object_stay_as_text(run, text):
    turn = SampleTurn(2, sampled="", calls=(SampleCall("add", text),))
    SampleFolder(run).write(1, [episode_sample(SampleEpisode("calc", attempt=1, turns=(turn,)))], keep=9)
    (call,) = documents(str(run))[0]["steps"][0]["tool_calls"]
    assert call == {
        "tool_call_id": "call_2_0", "function_name": "add", "arguments": {}, "extra": {"arguments_text": text}
    }  # fmt: skip


def test_a_folder_without_a_store_is_said(tmp_path):
    done = RUN.invoke(app, ["episodes", str(tmp_path)])
    assert done.exit_code == 2
    assert "state.db is not there" in done.output
