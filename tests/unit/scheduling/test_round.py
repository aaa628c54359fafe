"""The round as a state machine: leases, places, races, filters; one outcome for everything, in any order."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.status import RoundKind
from rljob_runtime.protocols.trajectory import Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round import Round
from rljob_runtime.scheduling.round_plan import (
    ENVIRONMENT_FAILED,
    EQUAL_REWARDS,
    RACE_LOST,
    REWARD_FAILED,
    PromptOutcome,
    RestoredSample,
    RoundOutcome,
    RoundPlan,
    RoundRules,
    RoundShape,
    SourceShape,
)
from rljob_runtime.scheduling.round_samples import SampleState
from tests.support.examples import examples

A, B, C = PromptKey(0, 1), PromptKey(0, 2), PromptKey(0, 3)


def plan(prompts=(A, B), responses=2, groups=None, group_size=None, **rules):
    groups, group_size = groups or len(prompts), group_size or responses
    kind = RoundKind.LONG if (groups, group_size) == (len(prompts), responses) else RoundKind.SHORT
    rules = RoundRules(**{"max_failures": 1, **rules})
    return RoundPlan(1, 7, RoundShape(kind, len(prompts), responses, groups, group_size), tuple(prompts), rules)


def end(round_: Round, *keys: TrajectoryKey, reward: float | None = 0.5) -> None:
    """These responses are generated, and scored unless `reward` is None."""
    round_.launch(["r"])
    for key in keys:
        assert round_.generated(key, round_.lease(key))
        if reward is not None:
            assert round_.scored(key, 1, reward)


def states(round_: Round, prompt: PromptKey) -> list[SampleState]:
    return [round_.state(key) for key in round_.plan.responses_of(prompt)]


# --- leases, rewards, failures ---


def test_a_round_from_launch_to_groups():
    round_ = Round(plan())
    end(round_, *round_.plan.trajectories())
    assert round_.complete
    assert round_.progress == 1.0
    settled = round_.settle()
    assert settled.groups == (A, B)
    assert settled.kept == round_.plan.trajectories()
    assert settled.outcomes == {A: PromptOutcome.TRAINED, B: PromptOutcome.TRAINED}
    assert round_.drain_aborts() == ()


def test_an_old_lease_finishes_nothing():
    round_ = Round(plan())
    old = {launch.key: launch.lease for launch in round_.launch(["r"])}
    assert set(round_.mark_replica_lost("r")) == set(old)
    new = {launch.key: launch.lease for launch in round_.launch(["q"])}
    for key in old:
        assert new[key].attempt == old[key].attempt + 1
        assert not round_.generated(key, old[key])
        assert round_.generated(key, new[key])
        assert not round_.generated(key, new[key])


@pytest.mark.parametrize("reason", [REWARD_FAILED, ENVIRONMENT_FAILED])
def test_a_reward_that_fails_too_often_filters_its_group(reason):
    round_ = Round(plan(max_failures=1))
    key, other = A_ = TrajectoryKey(A, 0), TrajectoryKey(A, 1)
    for turn in range(2):
        assert round_.filtered == {}
        assert round_.drain_aborts() == ()
        launches = {launch.key: launch for launch in round_.launch(["r"])}
        round_.generated(key, launches[key].lease)
        assert round_.reward_failed(key, turn + 1, RewardFailure(reason=reason))
    assert round_.filtered == {A: reason}
    restored = Round(plan(max_failures=1), {key: RestoredSample(2, failures=2, failure=reason)})
    assert restored.filtered == {A: reason}
    assert [launch.key for launch in round_.drain_aborts()] == [other]
    assert {round_.state(k) for k in A_} == {SampleState.DROPPED}
    assert round_.state(TrajectoryKey(B, 0)) is SampleState.RUNNING


def test_an_uncounted_failure_is_generated_again_and_filters_no_group():
    round_, key = Round(plan(max_failures=1)), TrajectoryKey(A, 0)
    for attempt in range(1, 6):
        launches = {launch.key: launch for launch in round_.launch(["r"])}
        round_.generated(key, launches[key].lease)
        assert round_.reward_failed(key, attempt, RewardFailure(reason=ENVIRONMENT_FAILED, counts=False))
    assert (round_.failures(key), round_.filtered) == (0, {})


def test_a_score_or_a_failure_for_another_attempt_counts_nothing():
    key = TrajectoryKey(A, 0)
    round_ = Round(plan(), {key: RestoredSample(attempt=3, generated=True)})
    assert not round_.scored(key, 2, 1.0)
    assert not round_.reward_failed(key, 2, RewardFailure())
    assert round_.scored(key, 3, 1.0)
    assert not round_.scored(key, 3, 0.0)
    assert round_.reward(key) == 1.0


def test_settling_early_is_an_error():
    with pytest.raises(RuntimeError, match="0%"):
        Round(plan()).settle()


@pytest.mark.parametrize("shape", [(1, 2, 2, 2), (2, 2, 2, 3), (2, 2, 0, 1)])
def test_a_round_that_keeps_more_than_it_launches_is_refused(shape):
    with pytest.raises(ValueError, match="cannot keep more than it launches"):
        RoundShape(RoundKind.SHORT, *shape)


# --- the race inside a prompt ---


def test_the_first_responses_win_and_siblings_abort_before_rewards():
    round_ = Round(plan(prompts=(A,), responses=3, group_size=2))
    end(round_, TrajectoryKey(A, 2), TrajectoryKey(A, 0), reward=None)
    assert states(round_, A) == [SampleState.GENERATED, SampleState.LOST, SampleState.GENERATED]
    assert [(abort.key, abort.lease) for abort in round_.drain_aborts()] == [(TrajectoryKey(A, 1), Lease("r", 1))]
    assert round_.drain_aborts() == ()
    assert not round_.generated(TrajectoryKey(A, 1), Lease("r", 1))
    assert round_.launch(["r"]) == ()
    for sample in (0, 2):
        assert round_.scored(TrajectoryKey(A, sample), 1, 0.5)
    settled = round_.settle()
    assert settled.kept == (TrajectoryKey(A, 0), TrajectoryKey(A, 2))
    assert settled.reasons == {}


def test_a_failed_reward_gives_its_place_back_and_the_siblings_race_again():
    round_ = Round(plan(prompts=(A,), responses=3, group_size=2))
    end(round_, TrajectoryKey(A, 0), TrajectoryKey(A, 1), reward=None)
    assert round_.reward_failed(TrajectoryKey(A, 0), 1, RewardFailure())
    assert states(round_, A) == [SampleState.WAITING, SampleState.GENERATED, SampleState.WAITING]
    assert {launch.lease.attempt for launch in round_.launch(["r"])} == {2}
    assert round_.generated(TrajectoryKey(A, 2), Lease("r", 2))
    assert states(round_, A) == [SampleState.LOST, SampleState.GENERATED, SampleState.GENERATED]


# --- the race between prompts ---


def test_the_first_complete_prompts_win_and_the_others_are_requeued():
    round_ = Round(plan(prompts=(A, B, C), groups=1))
    end(round_, *round_.plan.responses_of(B)[:1], *round_.plan.responses_of(A)[:1])
    assert not round_.complete
    end(round_, *round_.plan.responses_of(B)[1:], reward=0.25)
    assert round_.complete
    assert round_.missing == 0
    assert {abort.key for abort in round_.drain_aborts()} == {
        TrajectoryKey(A, 1),
        TrajectoryKey(C, 0),
        TrajectoryKey(C, 1),
    }
    settled = round_.settle()
    assert settled.groups == (B,)
    assert settled.outcomes == {A: PromptOutcome.REQUEUED, B: PromptOutcome.TRAINED, C: PromptOutcome.REQUEUED}
    assert settled.with_outcome(PromptOutcome.REQUEUED) == (A, C)
    assert settled.reasons == {A: RACE_LOST, C: RACE_LOST}
    assert round_.reward(TrajectoryKey(A, 0)) == 0.5, "what it scored tells how the race is biased"


LOST = [SampleState.LOST, SampleState.LOST]
A0, A1, B0, B1 = (TrajectoryKey(prompt, sample) for prompt in (A, B) for sample in (0, 1))


def test_the_race_is_decided_by_ends_not_by_rewards():
    """A prompt whose rewards take long wins all the same: else programs that run into their timeout would lose."""
    round_ = Round(plan(prompts=(A, B), groups=1))
    end(round_, B0)
    end(round_, A0, A1, reward=None)
    assert states(round_, B) == LOST
    assert [abort.key for abort in round_.drain_aborts()] == [B1]
    assert not round_.complete
    assert not round_.complete_prompts
    assert round_.drain_complete() == ()
    for key in (A0, A1):
        assert round_.scored(key, 1, 0.5)
    assert round_.drain_complete() == (A,)
    assert round_.settle().groups == (A,)


def test_a_failed_reward_reopens_the_race_for_its_place():
    round_ = Round(plan(prompts=(A, B), groups=1))
    end(round_, B0)
    end(round_, A0, A1, reward=None)
    assert round_.reward_failed(A0, 1, RewardFailure())
    assert states(round_, A) == [SampleState.WAITING, SampleState.GENERATED]
    assert states(round_, B) == [SampleState.SCORED, SampleState.WAITING]
    round_.launch(["r"])
    assert round_.generated(B1, Lease("r", 2))
    assert states(round_, A) == LOST
    assert round_.scored(B1, 2, 0.25)
    assert round_.settle().outcomes == {A: PromptOutcome.REQUEUED, B: PromptOutcome.TRAINED}


def test_the_reward_of_a_lost_prompt_is_kept_for_a_later_race():
    round_ = Round(plan(prompts=(A, B), groups=1))
    end(round_, B0, reward=None)
    end(round_, A0, A1, reward=None)
    assert round_.awaits_reward(B0)
    assert round_.scored(B0, 1, 1.0)
    assert not round_.awaits_reward(B0)
    assert states(round_, B) == LOST
    assert round_.reward_failed(A1, 1, RewardFailure())
    assert states(round_, B) == [SampleState.SCORED, SampleState.WAITING]


@pytest.mark.parametrize("by_response", [False, True])
def test_a_failed_reward_of_a_lost_prompt_counts_in_its_next_race(by_response):
    round_ = Round(plan(prompts=(A, B), groups=1, max_failures=1))
    end(round_, B0, reward=None)
    end(round_, A0, A1, reward=None)
    assert round_.reward_failed(B0, 1, RewardFailure(by_response=by_response))
    assert states(round_, B) == LOST
    assert round_.reward_failed(A1, 1, RewardFailure())
    assert states(round_, B) == [SampleState.WAITING, SampleState.WAITING]
    assert round_.failures(B0) == 1


def test_a_group_of_equal_rewards_that_had_won_lets_the_others_race_again():
    round_ = Round(plan(prompts=(A, B), groups=1, drop_equal=True, max_prompts=3))
    end(round_, B0, reward=0.0)
    end(round_, A0, A1, reward=None)
    assert round_.missing == 0
    for key in (A0, A1):
        assert round_.scored(key, 1, 1.0)
    assert round_.filtered == {A: EQUAL_REWARDS}
    assert states(round_, B) == [SampleState.SCORED, SampleState.WAITING]
    assert round_.missing == 1, "as many race as before"


def test_a_group_that_fails_leaves_its_place_to_another():
    round_ = Round(plan(prompts=(A, B), groups=1, max_failures=0))
    end(round_, A0, reward=None)
    round_.reward_failed(A0, 1, RewardFailure())
    end(round_, *round_.plan.responses_of(B))
    assert round_.settle().outcomes == {A: PromptOutcome.FILTERED, B: PromptOutcome.TRAINED}


def test_a_group_that_had_won_and_fails_leaves_its_place_to_who_had_lost():
    round_ = Round(plan(prompts=(A, B), groups=1, max_failures=0))
    end(round_, A0, A1, reward=None)
    round_.reward_failed(A0, 1, RewardFailure())
    assert states(round_, B) == [SampleState.WAITING, SampleState.WAITING]
    round_.launch(["r"])
    for key in (B0, B1):
        assert round_.generated(key, Lease("r", 2))
        assert round_.scored(key, 2, 0.5)
    assert round_.settle().outcomes == {A: PromptOutcome.FILTERED, B: PromptOutcome.TRAINED}


def test_an_older_store_with_too_many_full_groups_keeps_no_more():
    """A runtime before this decided by rewards: more prompts than places may have all of their responses."""
    keys = [TrajectoryKey(prompt, sample) for prompt in (A, B, C) for sample in (0, 1)]
    round_ = Round(plan(prompts=(A, B, C), groups=2), {key: RestoredSample(1, generated=True) for key in keys})
    assert states(round_, C) == LOST
    assert round_.reward_failed(A0, 1, RewardFailure())
    assert states(round_, C) == [SampleState.GENERATED, SampleState.GENERATED], "it takes the place"
    assert states(round_, A) == LOST


# --- groups that teach nothing ---


def test_a_group_of_equal_rewards_is_filtered_and_another_prompt_wanted():
    round_ = Round(plan(prompts=(A, B), drop_equal=True, max_prompts=3))
    assert round_.missing == 0
    end(round_, *round_.plan.responses_of(A), reward=1.0)
    assert round_.filtered == {A: EQUAL_REWARDS}
    assert round_.missing == 1
    round_.extend((C,), {TrajectoryKey(C, 0): RestoredSample(attempt=4)})
    assert round_.missing == 0
    assert {launch.lease.attempt for launch in round_.launch(["r"]) if launch.key.prompt == C} == {1, 5}
    end(round_, *round_.plan.responses_of(B), reward=0.0)
    assert round_.missing == 0, "it has drawn all it may"
    assert not round_.complete


def test_groups_of_equal_rewards_are_trained_on_by_default():
    round_ = Round(plan())
    end(round_, *round_.plan.trajectories(), reward=1.0)
    assert round_.settle().groups == (A, B)


def test_a_round_without_a_group_draws_again_up_to_its_limit():
    round_ = Round(plan(prompts=(A,), max_failures=0, max_prompts=2))
    end(round_, TrajectoryKey(A, 0), reward=None)
    round_.reward_failed(TrajectoryKey(A, 0), 1, RewardFailure())
    assert (round_.complete, round_.missing) == (True, 1)
    round_.extend((B,))
    assert not round_.complete
    end(round_, TrajectoryKey(B, 1), reward=None)
    round_.reward_failed(TrajectoryKey(B, 1), 1, RewardFailure())
    assert (round_.complete, round_.missing) == (True, 0)
    assert round_.settle().groups == ()


# --- any order of events ---


@st.composite
def plans(draw):
    groups, group_size = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    prompts = tuple(PromptKey(0, index) for index in range(groups + draw(st.integers(0, 2))))
    return plan(
        prompts,
        group_size + draw(st.integers(0, 2)),
        groups,
        group_size,
        max_failures=draw(st.integers(0, 2)),
        drop_equal=draw(st.booleans()),
        max_prompts=draw(st.integers(0, 8)),
    )


def saved_by_a_store(
    round_: Round, attempts: dict[TrajectoryKey, int], ended: set[TrajectoryKey]
) -> dict[TrajectoryKey, RestoredSample]:
    """What a store that was told of every event holds of the round."""
    return {
        key: RestoredSample(attempts.get(key, 0), round_.failures(key), key in ended, round_.reward(key))
        for key in round_.plan.trajectories()
    }


def resumed(state: SampleState) -> SampleState:
    return SampleState.WAITING if state is SampleState.RUNNING else state


def check_places(round_: Round) -> None:
    """Never more than the places of a group, and of the round; where all are taken no other response races."""
    shape, full = round_.plan.shape, set()
    for prompt in round_.plan.prompts:
        held = [s for s in states(round_, prompt) if s in (SampleState.GENERATED, SampleState.SCORED)]
        assert len(held) <= shape.group_size
        if len(held) == shape.group_size:
            full.add(prompt)
    assert round_.complete_prompts <= full
    assert len(full) <= shape.groups
    if len(full) == shape.groups:
        racing = round_.in_state(SampleState.WAITING, SampleState.RUNNING)
        assert {key.prompt for key in racing} <= full


def check_settled(round_: Round) -> None:
    shape, rules, settled = round_.plan.shape, round_.plan.rules, round_.settle()
    assert list(settled.outcomes) == list(round_.plan.prompts)
    by_outcome = {outcome: settled.with_outcome(outcome) for outcome in PromptOutcome}
    assert by_outcome[PromptOutcome.TRAINED] == settled.groups
    assert set(settled.reasons) == set(by_outcome[PromptOutcome.FILTERED]) | set(by_outcome[PromptOutcome.REQUEUED])
    assert len(settled.groups) <= shape.groups
    assert len(settled.kept) == len(settled.groups) * shape.group_size == len(set(settled.kept))
    if by_outcome[PromptOutcome.REQUEUED]:
        assert len(settled.groups) == shape.groups, "no response loses a race without a winner"
        assert shape.kind is RoundKind.SHORT
    for prompt in settled.groups:
        rewards = [round_.reward(key) for key in settled.kept if key.prompt == prompt]
        assert len(rewards) == shape.group_size
        assert None not in rewards
        assert not (rules.drop_equal and len(set(rewards)) == 1)
    if len(settled.groups) < shape.groups and rules.drop_equal:
        exhausted = len(round_.plan.prompts) >= rules.max_prompts
        assert exhausted or (settled.groups and REWARD_FAILED in settled.reasons.values())


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(plans(), st.data())
def test_everything_has_one_outcome_and_a_crash_changes_nothing(plan_, data):
    """Finishes, rewards, failures, losses, late replies and crashes of the coordinator in any order."""
    round_, further = Round(plan_), iter(PromptKey(1, index) for index in range(100))
    attempts: dict[TrajectoryKey, int] = {}
    running: set[tuple[TrajectoryKey, Lease]] = set()
    ended: set[TrajectoryKey] = set()
    for _ in range(400):
        if round_.missing:
            round_.extend([next(further) for _ in range(round_.missing)])
        if round_.complete:
            break
        for launch in round_.launch(["x", "y"]):
            assert launch.lease.attempt > attempts.get(launch.key, 0)
            attempts[launch.key] = launch.lease.attempt
            running.add((launch.key, launch.lease))
        event = data.draw(st.sampled_from(["finish", "finish", "score", "score", "fail", "lose", "late", "crash"]))
        scoring = [key for key in round_.plan.trajectories() if round_.awaits_reward(key)]
        finishing = round_.in_state(SampleState.RUNNING)
        if event == "lose":
            replica = data.draw(st.sampled_from(["x", "y"]))
            round_.mark_replica_lost(replica)
            running = {(key, lease) for key, lease in running if lease.replica != replica}
        elif event == "crash":
            before = {key: resumed(round_.state(key)) for key in round_.plan.trajectories()}
            round_ = Round(round_.plan, saved_by_a_store(round_, attempts, ended))
            running.clear()
            assert {key: round_.state(key) for key in round_.plan.trajectories()} == before
        elif event == "late":
            key = data.draw(st.sampled_from(round_.plan.trajectories()))
            if round_.lease(key) != Lease("x", 1):
                assert not round_.generated(key, Lease("x", 1))
        elif event in ("score", "fail") and scoring:
            key = data.draw(st.sampled_from(scoring))
            if event == "score":
                assert round_.scored(key, attempts[key], data.draw(st.sampled_from([0.0, 1.0])))
            else:
                assert round_.reward_failed(key, attempts[key], RewardFailure())
                ended.discard(key)
        elif finishing:
            key = data.draw(st.sampled_from(finishing))
            lease = round_.lease(key)
            assert round_.generated(key, lease)
            running.discard((key, lease))
            ended.add(key)
        running -= {(abort.key, abort.lease) for abort in round_.drain_aborts()}
        # What runs on the replicas is what the round believes to run: no replica generates in vain.
        assert running == {(key, round_.lease(key)) for key in round_.in_state(SampleState.RUNNING)}
        check_places(round_)
    else:
        return  # Only losses and crashes were drawn; nothing to settle.
    check_settled(round_)
    again = Round(round_.plan, saved_by_a_store(round_, attempts, ended))
    assert (again.complete, again.missing, again.settle()) == (True, 0, round_.settle())


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(plans(), st.data())
def test_when_rewards_come_decides_nothing(plan_, data):
    """The same responses end in the same order, with the same rewards: the same are trained on."""
    plan_ = replace(plan_, rules=RoundRules())
    order = data.draw(st.permutations(plan_.trajectories()))

    def play(delays: list[int]) -> RoundOutcome:
        round_, awaited, settled = Round(plan_), list[tuple[int, TrajectoryKey]](), len(order)
        round_.launch(["r"])
        for turn in range(len(order) + settled + 1):
            key = order[turn] if turn < len(order) else None
            if key is not None and (lease := round_.lease(key)) is not None:
                assert round_.generated(key, lease)
                awaited.append((turn + delays[turn], key))
            for due, key in [one for one in awaited if one[0] == turn]:
                assert round_.scored(key, 1, 0.5)
                awaited.remove((due, key))
        return round_.settle()

    late = st.lists(st.integers(0, len(order)), min_size=len(order), max_size=len(order))
    assert play(data.draw(late)) == play([0] * len(order))


# --- several sources ---


def mixed(shape: tuple[int, int, int, int], sources: tuple[SourceShape, ...], rules: RoundRules | None = None) -> Round:
    prompts = [PromptKey(0, index, one.name) for one in sources for index in range(one.prompts)]
    return Round(RoundPlan(1, 7, RoundShape(RoundKind.SHORT, *shape, sources), tuple(prompts), rules or RoundRules()))


def finish(round_: Round, prompt: PromptKey, rewards: list[float]) -> None:
    for key, reward in zip(round_.plan.responses_of(prompt), rewards, strict=True):
        lease = round_.lease(key)
        assert lease is not None, f"{key} does not run"
        assert round_.generated(key, lease)
        assert round_.scored(key, lease.attempt, reward)


def test_sources_race_for_their_own_places() -> None:
    sources = (SourceShape("words", 3, 2), SourceShape("sums", 2, 1))
    round_ = mixed((5, 2, 3, 2), sources)
    round_.launch(["x"])
    finish(round_, PromptKey(0, 1, "sums"), [0, 1])
    assert round_.state(TrajectoryKey(PromptKey(0, 0, "sums"), 0)) is SampleState.LOST
    assert round_.state(TrajectoryKey(PromptKey(0, 0, "words"), 0)) is SampleState.RUNNING
    finish(round_, PromptKey(0, 0, "words"), [0, 1])
    finish(round_, PromptKey(0, 2, "words"), [0, 1])
    outcome = round_.settle()
    assert [str(prompt) for prompt in outcome.groups] == ["words/0.0", "words/0.2", "sums/0.1"]
    assert [str(prompt) for prompt in outcome.with_outcome(PromptOutcome.REQUEUED)] == ["words/0.1", "sums/0.0"]


def test_a_filtered_group_is_replaced_from_its_source() -> None:
    sources = (SourceShape("words", 2, 2), SourceShape("sums", 1, 1))
    round_ = mixed((3, 2, 3, 2), sources, RoundRules(2, drop_equal=True, max_prompts=6))
    round_.launch(["x"])
    finish(round_, PromptKey(0, 0, "sums"), [1, 1])
    assert round_.missing_by_source() == {"sums": 1}
    round_.extend([PromptKey(0, 1, "sums")])
    assert round_.missing_by_source() == {}
    round_.launch(["x"])
    finish(round_, PromptKey(0, 1, "sums"), [1, 1])
    assert round_.missing_by_source() == {}, "the source has drawn all that it may"
