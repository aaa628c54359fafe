"""The samples of a round are decided with its end, and wait in the store for their file."""

from array import array

import pytest

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.store.records import Boundary, Pool, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables import kept_samples
from rljob_runtime.coordinator.store.tables.kept_samples import LONGEST_CAUSE, SampleRules
from rljob_runtime.protocols.rewards import Reward
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.samples import Sample, SampleOutcome
from rljob_runtime.scheduling.round_plan import PromptOutcome, RoundOutcome, RoundPlan, RoundShape

A, B, C = (PromptKey(0, index) for index in range(3))


def less_mean(rewards):
    return [reward - sum(rewards) / len(rewards) for reward in rewards]


def opened(path, per_round: int | None, asynchronous: bool = False) -> Store:
    store = Store(path / "state.db", "uid-1")
    store.samples.rules = SampleRules(per_round, seed=7, advantages=less_mean)
    if store.boundaries.newest() is None:
        store.start_at(Boundary(0, Cursor()), pool=Pool() if asynchronous else None)
        store.versions.publish(1, 0)
    return store


@pytest.fixture(params=[None, 3])
def per_round(request) -> int | None:
    return request.param


def play_round(store: Store, step: int = 1, close: bool = True) -> RoundOutcome:
    """Three prompts race for two groups of two: A is trained on, B filtered, C loses. One reward of A fails first."""
    plan = RoundPlan(step, 1, RoundShape(RoundKind.SHORT, 3, 3, 2, 2), (A, B, C))
    store.rounds.open(plan, Cursor(0, 3))
    store.trajectories.launched(step, 1, [(key, Lease("rollout-0", 1)) for key in plan.trajectories()])
    failing = TrajectoryKey(A, 0)
    end(store, step, failing, (9,), 1)
    store.trajectories.restart(step, failing, 1, "reward right (Raised): ValueError: no\n  number (" + "x" * 999)
    store.trajectories.launched(step, 1, [(failing, Lease("rollout-1", 2))])
    for key, reward in ((failing, 1.0), (TrajectoryKey(A, 2), 0.0), (TrajectoryKey(B, 0), 0.5)):
        end(store, step, key, (5, 6 + key.sample), 2)
        store.trajectories.score(step, key, Reward(2 * reward, {"right": reward, "short": 0.25}))
    store.trajectories.append(step, [Tokens(TrajectoryKey(C, 1), 0, (1, 2, 3), (-1.0,) * 3)])
    kept = (failing, TrajectoryKey(A, 2))
    store.trajectories.assign(step, kept)
    fates = {A: PromptOutcome.TRAINED, B: PromptOutcome.FILTERED, C: PromptOutcome.REQUEUED}
    outcome = RoundOutcome((A,), fates, {B: "EqualRewards", C: "RaceLost"}, kept)
    if close:
        store.rounds.close(outcome, Boundary(step, Cursor(0, 3), queue=(C,)))
    return outcome


def end(store: Store, step: int, key: TrajectoryKey, tokens: tuple[int, ...], attempt: int) -> None:
    response = Response(key, attempt, 1, tokens, (-1.0,) * len(tokens), FinishReason.STOP, "rollout-0")
    store.trajectories.finish(step, [Tokens(key, 0, tokens, response.logprobs)], [response])


def kept(store: Store, step: int = 1) -> dict[str, tuple[Sample, array]]:
    return {one.sample.key: (one.sample, one.token_ids) for one in store.samples.read(step, 0, 100)}


def test_each_response_has_its_outcome_reason_and_scores(tmp_path):
    store = opened(tmp_path, None)
    play_round(store)
    found = {key: (one.outcome.value, one.reason, list(tokens)) for key, (one, tokens) in kept(store).items()}
    assert found == {
        "0.0.0#1": ("failed", "RewardFailed", [9]),
        "0.0.0#2": ("trained", None, [5, 6]),
        "0.0.2#1": ("trained", None, [5, 8]),
        "0.1.0#1": ("filtered", "EqualRewards", [5, 6]),
        "0.2.1#1": ("requeued", "RaceLost", [1, 2, 3]),
    }
    one, _ = kept(store)["0.0.0#2"]
    assert one == Sample(
        round=1, prompt_id="0.0", sample=0, attempt=2, outcome=SampleOutcome.TRAINED, tokens=2, finish="stop",
        reward=2.0, rewards={"right": 1.0, "short": 0.25}, advantage=1.0, weight_versions=(1,), replica="rollout-1",
        staleness=0,
    )  # fmt: skip
    assert kept(store)["0.0.2#1"][0].advantage == -1.0
    stopped, _ = kept(store)["0.2.1#1"]
    assert (stopped.finish, stopped.reward, stopped.advantage, stopped.tokens) == (None, None, None, 3)
    store.close()


def test_a_response_that_lost_to_its_own_group_is_aborted(tmp_path):
    store = opened(tmp_path, None)
    play_round(store, close=False)
    store.trajectories.append(1, [Tokens(TrajectoryKey(A, 1), 0, (4,), (-1.0,))])
    fates = {A: PromptOutcome.TRAINED, B: PromptOutcome.FILTERED, C: PromptOutcome.REQUEUED}
    winners = (TrajectoryKey(A, 0), TrajectoryKey(A, 2))
    outcome = RoundOutcome((A,), fates, {B: "EqualRewards", C: "RaceLost"}, winners)
    store.rounds.close(outcome, Boundary(1, Cursor(0, 3), queue=(C,)))
    assert kept(store)["0.0.1#1"][0].outcome is SampleOutcome.ABORTED
    assert kept(store)["0.0.1#1"][0].reason == "RaceLost"
    store.close()


def test_no_more_than_asked_are_kept(tmp_path):
    store = opened(tmp_path, 3)
    play_round(store)
    outcomes = [one.outcome for one, _ in kept(store).values()]
    assert len(outcomes) == 3
    assert outcomes.count(SampleOutcome.TRAINED) == 2
    store.close()


@pytest.mark.parametrize("rules", [None, SampleRules(0, 7, less_mean)])
def test_nothing_is_kept_without_rules_or_for_0(tmp_path, rules):
    store = opened(tmp_path, 3)
    store.samples.rules = rules
    play_round(store)
    assert (store.samples.due(), kept(store)) == ((), {})
    store.close()


def test_an_open_round_is_not_due_and_a_restart_changes_nothing(tmp_path, per_round):
    (tmp_path / "other").mkdir()
    calm = opened(tmp_path / "other", per_round)
    play_round(calm)
    store = opened(tmp_path, per_round)
    outcome = play_round(store, close=False)
    assert store.samples.due() == ()
    store.close()
    store = opened(tmp_path, per_round)
    store.rounds.close(outcome, Boundary(1, Cursor(0, 3), queue=(C,)))
    store.close()
    store = opened(tmp_path, per_round)
    assert store.samples.due() == (1,)
    assert kept(store) == kept(calm)
    store.samples.written(1)
    assert (store.samples.due(), kept(store)) == ((), {})
    for one in (store, calm):
        one.close()


def test_a_rewind_abandons_what_was_not_written(tmp_path):
    store = opened(tmp_path, None)
    play_round(store)
    assert store.rewind(0)
    assert kept(store) == {}
    store.close()


def test_a_volume_that_does_not_answer_costs_rounds_not_space(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_samples, "ROUNDS_DUE", 0)
    store = opened(tmp_path, None)
    play_round(store)
    assert (store.samples.due(), kept(store)) == ((), {})
    store.close()


# --- asynchronous ---


def group(store: Store, prompt: PromptKey, rewards: tuple[float | None, ...], version: int = 1) -> None:
    store.experience.draw([prompt], Cursor(0, 1 + prompt.index), version, "rollout-0", len(rewards))
    keys = [TrajectoryKey(prompt, sample) for sample in range(len(rewards))]
    store.experience.launched([(key, Lease("rollout-0", 1)) for key in keys])
    ended = [Response(key, 1, version, (), (), FinishReason.LENGTH, "rollout-0") for key in keys]
    store.experience.finish([Tokens(key, 0, (7, key.sample), (-1.0, -1.0)) for key in keys], ended)
    scored = [
        (key, Reward(reward, {"right": reward}))
        for key, reward in zip(keys, rewards, strict=True)
        if reward is not None
    ]
    store.experience.score(scored)


def update(store: Store) -> None:
    store.experience.assign(1, [A])
    store.experience.close_update(Boundary(1, store.experience.cursor()), stale={A: 2})


def test_an_update_has_its_groups_and_those_that_ended_since_the_last(tmp_path):
    store = opened(tmp_path, None, asynchronous=True)
    group(store, A, (1.0, 0.0))
    group(store, B, (0.0, None))
    group(store, C, (None, None))
    store.experience.restart(
        TrajectoryKey(B, 1), 3, "reward right (TimedOut): no answer within 5 s", "EnvironmentFailed"
    )
    store.experience.end([B], PromptOutcome.FILTERED, "RewardFailed")
    store.experience.end([C], PromptOutcome.REQUEUED, "TooStale")
    store.close()
    store = opened(tmp_path, None, asynchronous=True)
    assert store.samples.due() == (), "the update is open"
    update(store)
    assert store.samples.due() == (1,)
    found = {key: (one.outcome.value, one.reason, one.advantage, one.staleness, list(tokens))
             for key, (one, tokens) in kept(store).items()}  # fmt: skip
    assert found == {
        "0.0.0#1": ("trained", None, 0.5, 2, [7, 0]),
        "0.0.1#1": ("trained", None, -0.5, 2, [7, 1]),
        "0.1.1#1": ("failed", "EnvironmentFailed", None, None, [7, 1]),
        "0.1.0#1": ("filtered", "RewardFailed", None, None, [7, 0]),
        "0.2.0#1": ("requeued", "TooStale", None, None, [7, 0]),
        "0.2.1#1": ("requeued", "TooStale", None, None, [7, 1]),
    }
    assert kept(store)["0.0.0#1"][0].rewards == {"right": 1.0}
    causes = {key: one.cause for key, (one, _) in kept(store).items() if one.cause is not None}
    assert causes == {"0.1.1#1": "reward right (TimedOut): no answer within 5 s"}
    assert store.experience.outcomes() == {"trained": 1, "filtered": 1, "requeued": 1}
    store.close()


def test_many_groups_that_end_early_take_bounded_space(tmp_path):
    store = opened(tmp_path, 2, asynchronous=True)
    group(store, A, (1.0, 0.0))
    for index in range(1, 9):
        group(store, PromptKey(0, index), (1.0, 1.0))
        store.experience.end([PromptKey(0, index)], PromptOutcome.FILTERED, "EqualRewards")
    assert len(kept_early(store)) == 2
    update(store)
    assert sorted(one.outcome.value for one, _ in kept(store).values()) == ["trained", "trained"]
    store.close()


def kept_early(store: Store) -> list[object]:
    return store.samples.read(1, -100, 100)


def test_a_failed_sample_names_its_cause_in_a_line(tmp_path):
    store = opened(tmp_path, None)
    play_round(store)
    causes = {key: one.cause for key, (one, _) in kept(store).items() if one.cause is not None}
    assert list(causes) == ["0.0.0#1"]
    assert causes["0.0.0#1"].startswith("reward right (Raised): ValueError: no number (xxx")
    assert len(causes["0.0.0#1"]) == LONGEST_CAUSE
    store.close()
