"""A real job on a local Ray: toy model, reference engine, real relay, real trainer."""

import json
import os
from pathlib import Path

import pytest
import yaml

from rljob_api import RLJob, load
from rljob_api.status import FinishedOutcome
from rljob_runtime.samples import SampleFolder
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.engine
def test_a_job_runs_programs_and_a_longer_one_goes_on_in_the_same_folder(tmp_path):
    from rljob_runtime.local import run

    manifest = yaml.safe_load((EXAMPLES / "code-rewards.yaml").read_text(encoding="utf-8"))
    manifest["spec"]["algorithm"] |= {"promptsPerRound": 4, "responsesPerPrompt": 4}

    def lasting(rounds: int) -> RLJob:
        return load({**manifest, "spec": {**manifest["spec"], "rounds": rounds}})

    first = run(lasting(2), tmp_path)
    assert first.finished is not None
    assert first.finished.outcome is FinishedOutcome.COMPLETE, first.finished.message
    assert (first.round, first.weight_version) == (2, 3)
    assert Path(first.model_path or "").is_dir()
    assert first.last_round is not None
    assert first.last_round.program_runs == 16, "a test for each response"
    assert first.warnings == ()

    second = run(lasting(3), tmp_path)
    assert second.finished is not None
    assert second.finished.outcome is FinishedOutcome.COMPLETE, second.finished.message
    assert (second.round, second.weight_version) == (3, 4)
    assert second.totals is not None
    assert second.totals.coordinator_restarts == 1
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert 0 < sum(line["reward"] for line in lines) < 3, "the toy answers some of them"
    samples = [list(SampleFolder(tmp_path).read(number)) for number in SampleFolder(tmp_path).rounds()]
    assert [len(each) for each in samples] == [16, 16, 16], "a coordinator that comes later leaves them"
    assert all(one.rewards.keys() == {"tests"} and one.tokens for each in samples for one in each)
    means = [sum(one.reward for one in each) / 16 for each in samples]
    assert [line["reward"] for line in lines] == pytest.approx(means, rel=1e-3)
    assert [line["rewardRules"][0]["mean"] for line in lines] == pytest.approx(means, rel=1e-3)


@pytest.mark.engine
def test_rounds_race_and_groups_are_trained_on_early(tmp_path):
    from rljob_runtime.local import run

    manifest = yaml.safe_load((EXAMPLES / "addition-rollpacker.yaml").read_text(encoding="utf-8"))
    manifest["spec"]["rounds"] = 4
    result = run(load(manifest), tmp_path)
    assert result.finished is not None
    assert result.finished.outcome is FinishedOutcome.COMPLETE, result.finished.message
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert sum(line["abortedResponses"] for line in lines) > 0, "who lost the race was stopped"
    assert sum(line["earlyGroups"] for line in lines) > 0, "the trainer did not wait for the last response"
    assert any(line.get("loan") for line in lines), "whether a machine was loaned, and why not, is reported"


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
    manifest["spec"]["rounds"] = 6
    result = run(load(manifest), tmp_path)
    assert result.finished is not None
    assert result.finished.outcome is FinishedOutcome.COMPLETE, result.finished.message
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert result.weight_version == 7
    assert max(line["maxStaleness"] for line in lines) > 0, "it is not on policy"
    assert max(abs(line["training"]["mismatch_kl"]) for line in lines) > 1e-6, "behaviour and policy differ"
    assert result.totals is not None
    assert result.totals.trained_trajectories == 6 * 8 * 8
