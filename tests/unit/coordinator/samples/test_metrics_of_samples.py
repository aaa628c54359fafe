"""Whole jobs under virtual time: with every response kept, the samples say what the reports say."""

from collections import Counter
from statistics import mean, pstdev
from typing import Any

import pytest

from rljob_api.spec.training import Mode
from rljob_runtime.coordinator.reporting.group_metrics import quantile
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.kept_samples import SampleRules
from rljob_runtime.protocols.rewards import Reward
from rljob_runtime.samples import Sample, SampleOutcome
from rljob_runtime.simulator.peers.inputs import SimulatedRewards
from rljob_runtime.training.algorithm.advantage import group_advantages
from tests.support.simulated_job import Stage, job

TAIL = {"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}
JOBS: dict[str, dict[str, Any]] = {
    "plain": {"prompts": 4, "responses": 4},
    "races": {"prompts": 4, "responses": 4, "tail": TAIL},
    "dynamic sampling": {"prompts": 4, "responses": 2, "dynamic": {"enabled": True}},
    "asynchronous": {"prompts": 4, "responses": 3, "mode": Mode.ASYNCHRONOUS},
    "asynchronous with filtered groups": {
        "prompts": 4,
        "responses": 2,
        "mode": Mode.ASYNCHRONOUS,
        "dynamic": {"enabled": True},
    },
}


class TwoRules(SimulatedRewards):
    """Half of the usual reward each, from two rules."""

    async def score(self, prompt: object, response_text: str) -> float:
        reward = await super().score(prompt, response_text)
        return Reward(reward, {"right": reward, "long": float(len(response_text))})


@pytest.fixture(params=JOBS.items(), ids=JOBS.keys())
def played(request, tmp_path):
    """Reports and samples of three rounds, in which rewards fail sometimes."""
    fails = {"0.1": 1, "0.3": 9}
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, **request.param[1]))
    stage.rewards = TwoRules(fails=fails, levels=3)

    def keep_all() -> None:
        assert stage.store is not None
        stage.store.samples.use(SampleRules(None, 7, group_advantages))

    stage.on_opening = keep_all
    stage.play()
    store = Store(stage.path, "uid-1")
    samples = {step: [kept.sample for kept in store.samples.read(step, 0, 10_000)] for step in store.samples.due()}
    lengths = {step: [len(kept.token_ids) for kept in store.samples.read(step, 0, 10_000)] for step in samples}
    stage.lengths = {step: store.lengths(step) for step in samples}
    store.close()
    return stage, samples, lengths


def test_each_metric_is_that_of_a_second_computation(played):
    stage, samples, _ = played
    assert [report.round for report in stage.closed] == sorted(samples) == [1, 2, 3]
    for report in stage.closed:
        groups = trained_groups(samples[report.round])
        trained = [one for group in groups for one in group]
        assert report.responses == len(trained)
        assert report.reward == near(mean(one.reward for one in trained))
        for rule in report.reward_rules:
            values = [one.rewards[rule.name] for one in trained]
            assert (rule.mean, rule.deviation) == (near(mean(values)), near(pstdev(values)))
        assert [rule.name for rule in report.reward_rules] == ["right", "long"]
        assert report.group_reward_deviation == near(mean(pstdev(one.reward for one in group) for group in groups))
        assert report.equal_reward_groups == near(mean(len({one.reward for one in group}) == 1 for group in groups))
        assert report.truncated_responses == near(mean(one.finish == "length" for one in trained))
        tokens = sorted(one.tokens for one in trained)
        assert report.max_response_tokens == tokens[-1]
        shown = (report.response_tokens_p50, report.response_tokens_p90, report.response_tokens_p99)
        assert shown == tuple(quantile(tokens, share) for share in (0.5, 0.9, 0.99))


def test_samples_have_their_tokens_advantages_and_ends(played):
    stage, samples, lengths = played
    size = stage.job.spec.algorithm.responses_per_prompt
    for step, found in samples.items():
        assert [one.tokens for one in found] == lengths[step]
        assert max(Counter(one.key for one in found).values()) == 1
        for group in trained_groups(found):
            assert len(group) == size
            assert [one.advantage for one in group] == group_advantages([one.reward for one in group])
            assert len({one.weight_versions for one in group}) == 1
            assert None not in [one.staleness for one in group]
        for one in found:
            assert (one.reason is None) == (one.outcome is SampleOutcome.TRAINED)


def test_what_was_not_trained_on_is_among_them(played):
    stage, samples, _ = played
    found = [one for each in samples.values() for one in each]
    outcomes = Counter(one.outcome for one in found)
    assert outcomes[SampleOutcome.FAILED] >= 1
    causes = {one.cause for one in found if one.outcome is SampleOutcome.FAILED}
    assert all(cause.startswith("the reward of 0.") for cause in causes), "as the rewards said it"
    assert {one.cause for one in found if one.outcome is not SampleOutcome.FAILED} == {None}
    if stage.job.spec.tail_batching.enabled:
        assert outcomes[SampleOutcome.ABORTED] >= 1
    groups = {(one.round, one.prompt_id) for one in found if one.outcome is SampleOutcome.FILTERED}
    assert len(groups) <= sum(report.filtered_groups or 0 for report in stage.closed)


def test_the_lengths_of_a_round_are_those_of_its_samples(played):
    stage, samples, _ = played
    for step, found in stage.lengths.items():
        trained = {str(one.prompt): sorted(one.tokens) for one in found if one.kept}
        ended = (SampleOutcome.TRAINED, SampleOutcome.ABORTED)
        expected: dict[str, list[int]] = {}
        for one in samples[step]:
            if one.outcome in ended and one.finish is not None:
                expected.setdefault(one.prompt_id, []).append(one.tokens)
        assert trained == {prompt: sorted(tokens) for prompt, tokens in expected.items()}
        again = {one.prompt_id for one in samples[step] if one.outcome is SampleOutcome.REQUEUED}
        assert not again & {str(one.prompt) for one in found}, "they count when they end"
    if stage.job.spec.tail_batching.enabled:
        requeued = SampleOutcome.REQUEUED
        assert any(one.outcome is requeued and one.finish for found in samples.values() for one in found)
    if stage.job.spec.algorithm.dynamic_sampling.enabled:
        assert not all(one.kept for found in stage.lengths.values() for one in found), "filtered ones are among them"


def trained_groups(samples: list[Sample]) -> list[list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for one in samples:
        if one.outcome is SampleOutcome.TRAINED:
            groups.setdefault(one.prompt_id, []).append(one)
    return list(groups.values())


def near(value: float):
    return pytest.approx(value, rel=1e-3)
