"""A real job on a local Ray: toy model, reference engine, real relay, real trainer."""

import json
import os
from pathlib import Path

import pytest
import yaml

from rljob_api import RLJob, load
from rljob_api.status import FinishedOutcome
from rljob_runtime.evaluation import read_evaluations
from rljob_runtime.samples import SampleFolder, SampleOutcome
from rljob_runtime.samples.lengths import export
from rljob_runtime.timeline.convert import trace_of
from rljob_runtime.timeline.record import read_records
from rljob_runtime.workloads.trace import read_trace
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.engine
def test_a_job_runs_programs_and_a_longer_one_goes_on_in_the_same_folder(tmp_path):
    from rljob_runtime.local import run

    manifest = yaml.safe_load((EXAMPLES / "code-rewards.yaml").read_text(encoding="utf-8"))
    manifest["spec"]["algorithm"] |= {"promptsPerRound": 4, "responsesPerPrompt": 4}

    def lasting(rounds: int) -> RLJob:
        return load({**manifest, "spec": {**manifest["spec"], "rounds": rounds}})

    first = run(lasting(1), tmp_path)
    assert first.finished is not None
    assert first.finished.outcome is FinishedOutcome.COMPLETE, first.finished.message
    assert (first.round, first.weight_version) == (1, 2)
    assert Path(first.model_path or "").is_dir()
    assert first.last_round is not None
    assert first.last_round.program_runs == 16, "a test for each response"
    assert first.warnings == ()

    second = run(lasting(2), tmp_path)
    assert second.finished is not None
    assert second.finished.outcome is FinishedOutcome.COMPLETE, second.finished.message
    assert (second.round, second.weight_version) == (2, 3)
    assert second.totals is not None
    assert second.totals.coordinator_restarts == 1
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert 0 < sum(line["reward"] for line in lines) < 2, "the toy answers some of them"
    samples = [list(SampleFolder(tmp_path).read(number)) for number in SampleFolder(tmp_path).rounds()]
    assert [len(each) for each in samples] == [16, 16], "a coordinator that comes later leaves them"
    assert all(one.rewards.keys() == {"tests"} and one.tokens for each in samples for one in each)
    document = trace_of(read_records((tmp_path / "timeline.jsonl").read_text())).document()
    threads = {event["tid"]: event["args"]["name"] for event in document["traceEvents"] if event["ph"] == "M"}
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    phases = {(one["args"]["round"], one["name"]): one["dur"] / 1e6 for one in spans if threads[one["tid"]] == "rounds"}
    for line in lines:
        assert phases[line["round"], "generation"] == pytest.approx(line["generationSeconds"], abs=0.1)
        assert phases[line["round"], "training"] == pytest.approx(line["trainingSeconds"], abs=0.1)
        assert phases[line["round"], "weight sync"] == pytest.approx(line["broadcastSeconds"], abs=0.1)
    assert {"generate", "load", "receive", "train", "publish", "checkpoint", "rewards"} <= {
        one["name"] for one in spans
    }
    trained = [[one.tokens for one in each if one.outcome is SampleOutcome.TRAINED] for each in samples]
    assert export(tmp_path, tmp_path / "trace").responses == 32
    exported = read_trace(tmp_path / "trace").steps
    for step, tokens in zip(exported, trained, strict=True):
        assert sorted(one.output_tokens for prompt in step.prompts for one in prompt.responses) == sorted(tokens)
        assert min(prompt.input_tokens for prompt in step.prompts) > 1
    means = [sum(one.reward for one in each) / 16 for each in samples]
    assert [line["reward"] for line in lines] == pytest.approx(means, rel=1e-3)
    assert [line["rewardRules"][0]["mean"] for line in lines] == pytest.approx(means, rel=1e-3)


@pytest.mark.slow  # without an engine they are in tests/unit/coordinator/test_sources.py
@pytest.mark.engine
def test_sources_have_their_shares_and_their_own_rewards(tmp_path):
    from rljob_runtime.local import run

    manifest = yaml.safe_load((EXAMPLES / "gsm8k-like.yaml").read_text(encoding="utf-8"))
    manifest["spec"]["rounds"] = 3
    manifest["spec"]["samples"] = {"perRound": "All"}
    result = run(load(manifest), tmp_path)
    assert result.finished is not None
    assert result.finished.outcome is FinishedOutcome.COMPLETE, result.finished.message
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [[(one["name"], one["prompts"]) for one in line["sources"]] for line in lines] == [
        [("sums", 2), ("words", 6)]
    ] * 3
    for number, line in enumerate(lines, 1):
        samples = list(SampleFolder(tmp_path).read(number))
        for source, rule in (("words", "last-number"), ("sums", "correct")):
            own = [one for one in samples if one.prompt_id.startswith(f"{source}/")]
            assert all(one.rewards.keys() == {rule} for one in own)
            (told,) = (one["reward"] for one in line["sources"] if one["name"] == source)
            assert told == pytest.approx(sum(one.reward for one in own) / len(own), abs=1e-3)
    evaluations = read_evaluations(tmp_path)
    # 8 of 80 problems are held out, and every fourth prompt is a sum.
    assert sorted((one.name, one.round, one.prompts, *sorted(one.rules)) for one in evaluations) == [
        ("unseen", 0, 10, "correct", "last-number"),
        ("unseen", 3, 10, "correct", "last-number"),
        ("unseen-words", 0, 20, "last-number"),
        ("unseen-words", 3, 20, "last-number"),
    ]
    assert not any(one.failed for one in evaluations)


@pytest.mark.slow  # without a job they are in tests/unit/training/algorithm/test_own.py
@pytest.mark.engine
def test_a_job_trains_with_its_own_loss_and_advantage(tmp_path, monkeypatch):
    from rljob_runtime.local import run

    path = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    manifest = yaml.safe_load((EXAMPLES / "own-loss.yaml").read_text(encoding="utf-8"))
    manifest["spec"]["rounds"] = 2
    result = run(load(manifest), tmp_path / "good")
    assert result.finished is not None
    assert result.finished.outcome is FinishedOutcome.COMPLETE, result.finished.message
    lines = [json.loads(line)["training"] for line in (tmp_path / "good/rounds.jsonl").read_text().splitlines()]
    assert [line["metrics"].keys() for line in lines] == [{"gate", "response_surprise"}] * 2
    assert all(line["metrics"]["gate"] > 0 and line["grad_norm"] > 0 for line in lines)

    manifest["spec"]["algorithm"]["loss"] = "own_loss:above_the_median"
    result = run(load(manifest), tmp_path / "bad")
    assert result.finished is not None
    assert (result.finished.outcome, result.finished.reason) == (FinishedOutcome.FAILED, "FunctionNotUsable")
    assert result.finished.message.startswith(
        "step 1 is not trained: algorithm.loss own_loss:above_the_median raised TypeError"
    )
    assert (result.round or 0, (tmp_path / "bad/rounds.jsonl").exists()) == (0, False)


@pytest.mark.engine
def test_an_asynchronous_job_runs_to_its_end(tmp_path):
    from rljob_runtime.local import run

    manifest = yaml.safe_load((EXAMPLES / "addition-asynchronous.yaml").read_text(encoding="utf-8"))
    manifest["spec"]["rounds"] = 3
    manifest["spec"]["rollout"]["machines"] = 2
    result = run(load(manifest), tmp_path)
    assert result.finished is not None
    assert result.finished.outcome is FinishedOutcome.COMPLETE, result.finished.message
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert result.weight_version == 4
    assert max(line["maxStaleness"] for line in lines) > 0, "it is not on policy"
    assert max(abs(line["training"]["mismatch_kl"]) for line in lines) > 1e-6, "behaviour and policy differ"
    assert result.totals is not None
    assert result.totals.trained_trajectories == 3 * 8 * 8
