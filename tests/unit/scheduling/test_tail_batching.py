"""Tail batching: the policy as tables and properties, and whole runs of the real coordinator under virtual time."""

import asyncio
import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import FinishedOutcome, RoundKind
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.reporting.round_log import RoundLog
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey, sample_seed
from rljob_runtime.scheduling.round_plan import RoundShape
from rljob_runtime.scheduling.shares import Shares
from rljob_runtime.scheduling.tail_batching import (
    Factors,
    Opening,
    ceil_product,
    from_queue,
    next_round,
    next_round_of,
    queue_after,
    replacements,
)
from rljob_runtime.simulator.peers.inputs import SimulatedPrompts
from tests.support.simulated_job import Stage, job, until

PLAIN, SHORT, LONG = RoundKind.PLAIN, RoundKind.SHORT, RoundKind.LONG
HALF_MORE = {"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}


@pytest.mark.parametrize(
    ("factors", "queued", "rounds_left", "kind", "launched", "taken"),
    [
        (Factors(), 0, 50, SHORT, (160, 10), 0),
        (Factors(), 127, 50, SHORT, (160, 10), 0),
        (Factors(), 128, 50, LONG, (128, 8), 128),
        (Factors(), 155, 50, LONG, (128, 8), 128),
        # The queue must be empty at the end: the last rounds are long, filled up with fresh prompts.
        (Factors(), 96, 2, SHORT, (160, 10), 0),
        (Factors(), 97, 2, LONG, (128, 8), 97),
        (Factors(), 100, 1, LONG, (128, 8), 100),
        (Factors(), 0, 1, PLAIN, (128, 8), 0),
        (Factors(3, 1), 0, 3, SHORT, (384, 8), 0),
        (Factors(3, 1), 1, 3, LONG, (128, 8), 1),
        # No race between a prompt's responses, or none between prompts: then nothing is ever queued.
        (Factors(responses=1), 0, 50, SHORT, (160, 8), 0),
        (Factors(prompts=1), 0, 1, SHORT, (128, 10), 0),
        (Factors(1, 1), 0, 50, SHORT, (128, 8), 0),
        # Without tail batching: plain rounds, which empty what a former setting left.
        (None, 0, 50, PLAIN, (128, 8), 0),
        (None, 5, 50, LONG, (128, 8), 5),
        (None, 300, 50, LONG, (128, 8), 128),
    ],
)
def test_the_next_round(factors, queued, rounds_left, kind, launched, taken):
    opening = next_round(128, 8, factors, queued, rounds_left)
    assert opening == Opening(RoundShape(kind, *launched, 128, 8), {"": taken})
    assert opening.fresh == launched[0] - taken


@pytest.mark.parametrize(("factor", "count", "product"), [(1.1, 10, 11), (1.25, 3, 4), (1, 7, 7), (1.3, 10, 13)])
def test_factors_are_the_decimals_that_were_written(factor, count, product):
    assert ceil_product(factor, count) == product


@pytest.mark.parametrize("factors", [(0.9, 1), (1, 0.5), (float("nan"), 1)])
def test_factors_below_one_are_refused(factors):
    with pytest.raises(ValueError, match="factors must be at least 1"):
        Factors(*factors)


def test_only_long_rounds_take_replacements_from_the_queue_and_none_twice():
    queue = tuple(PromptKey(0, index) for index in range(4))
    assert replacements(LONG, queue, queue[:2], {"": 3}) == queue[2:]
    assert replacements(LONG, queue, (), {"": 1}) == queue[:1]
    assert replacements(SHORT, queue, (), {"": 3}) == ()


@given(
    st.integers(1, 6),
    st.integers(1, 30),
    st.none() | st.builds(Factors, st.sampled_from([1, 1.25, 1.5, 2, 4]), st.sampled_from([1, 1.25])),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_a_job_trains_once_on_each_prompt_of_plain_rounds(groups, rounds, factors, waiting, rng):
    """Whatever wins the races: after the last round nothing waits, and what was drawn is what was trained on."""
    waiting = min(waiting, groups * rounds)
    queue = tuple(PromptKey(-1, index) for index in range(waiting))
    trained, cursor = [], 0
    for left in range(rounds, 0, -1):
        opening = next_round(groups, 8, factors, len(queue), left)
        fresh = [PromptKey(0, cursor + index) for index in range(opening.fresh)]
        cursor += opening.fresh
        drawn = (*queue[: opening.queued], *fresh)
        assert len(set(drawn)) == len(drawn) == opening.shape.prompts
        if len(queue) >= groups:
            assert (opening.shape.kind, opening.fresh) == (LONG, 0)
        winners = sorted(rng.sample(drawn, groups))
        requeued = [prompt for prompt in drawn if prompt not in winners]
        assert not (requeued and opening.shape.kind is not SHORT)
        trained += winners
        queue = queue_after(queue, drawn, requeued)
    assert queue == ()
    plain = groups * rounds - waiting
    assert sorted(trained) == [PromptKey(-1, i) for i in range(waiting)] + [PromptKey(0, i) for i in range(plain)]


@pytest.mark.parametrize(
    ("name", "places", "queued", "later", "kind", "launched", "taken"),
    [
        ("the queue gets the shares", (6, 2), (3, 0), (90, 30), SHORT, (7, 3), (0, 0)),
        ("the most behind first", (6, 2), (0, 2), (90, 30), SHORT, (8, 2), (0, 0)),
        ("a source without a place launches nothing", (8, 0), (0, 0), (90, 1), SHORT, (10, 0), (0, 0)),
        ("what waits fits into the later places", (6, 2), (0, 1), (90, 1), SHORT, (8, 2), (0, 0)),
        ("else the round is long", (6, 2), (0, 2), (90, 1), LONG, (6, 2), (0, 2)),
        ("a long round takes each source's own", (6, 2), (9, 1), (90, 30), LONG, (6, 2), (6, 1)),
    ],
)
def test_the_next_round_of_two_sources(name, places, queued, later, kind, launched, taken):
    def named(counts):
        return dict(zip("ab", counts, strict=True))

    opening = next_round_of(named(places), 8, Factors(), named(queued), named(later))
    assert opening.shape.kind is kind
    assert {one.name: one.prompts for one in opening.shape.sources} == named(launched)
    assert {one.name: one.groups for one in opening.shape.sources} == named(places)
    assert opening.taken == named(taken)
    assert opening.fresh_of == {name: count - opening.taken[name] for name, count in named(launched).items()}


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.integers(1, 8),
    st.integers(1, 30),
    st.none() | st.builds(Factors, st.sampled_from([1, 1.25, 1.5, 2, 4])),
    st.randoms(use_true_random=False),
)
def test_rounds_of_several_sources_keep_the_shares_and_leave_nothing(weights, groups, rounds, factors, rng):
    shares = Shares.of({f"s{number}": weight for number, weight in enumerate(weights)})
    queue, counts, drawn_of = (), Counter(), Counter()
    trained = []
    for left in range(rounds, 0, -1):
        places = Counter(shares.sequence(counts, groups))
        counts += places
        waiting = Counter(prompt.source for prompt in queue)
        opening = next_round_of(
            {name: places[name] for name in shares.weights},
            8,
            factors,
            waiting,
            shares.least(counts, (left - 1) * groups),
        )
        fresh = []
        for name, count in opening.fresh_of.items():
            fresh += [PromptKey(0, drawn_of[name] + index, name) for index in range(count)]
            drawn_of[name] += count
        drawn = (*from_queue(queue, opening.taken), *fresh)
        winners = [
            prompt
            for race in opening.shape.races
            for prompt in rng.sample([one for one in drawn if one.source == race.name], race.groups)
        ]
        requeued = [prompt for prompt in drawn if prompt not in winners]
        assert not (requeued and opening.shape.kind is not SHORT)
        trained += winners
        queue = queue_after(queue, drawn, requeued)
        for name, weight in shares.weights.items():
            number = sum(prompt.source == name for prompt in trained)
            assert abs(number - len(trained) * weight / shares.total) < 1
    assert queue == ()
    assert len(set(trained)) == groups * rounds == sum(drawn_of.values())


def test_a_prompt_that_lost_is_tried_again_with_other_random_numbers():
    key = TrajectoryKey(PromptKey(0, 3), 1)
    assert sample_seed(7, 1, key, 0, 0) == sample_seed(7, 1, key, 0, 0)
    assert sample_seed(7, 1, key, 0, 0) != sample_seed(7, 2, key, 0, 0)


def check_whole(stage: Stage, rounds: int, prompts: int, responses: int, size: int = 1000) -> None:
    """Exactly the first prompts of the data were trained on, each by one whole group, and nothing waits or runs."""
    ids = [TrajectoryKey.parse(text) for text in stage.trained_ids()]
    assert len(ids) == len(set(ids)) == rounds * prompts * responses
    by_prompt = {key.prompt: sum(other.prompt == key.prompt for other in ids) for key in ids}
    assert sorted(by_prompt) == [PromptKey(*divmod(place, size)) for place in range(rounds * prompts)]
    assert set(by_prompt.values()) == {responses}
    store = Store(stage.path, "uid-1")
    assert store.boundaries.newest().queue == ()
    assert store.rounds.under_way() is None
    outcomes = store.trajectories.outcomes()
    store.close()
    assert outcomes["trained"] == len(ids)
    assert set(outcomes) <= {"trained", "discarded"}
    last = stage.control.last
    assert last.deferred_prompts == 0
    assert (last.totals.trained_trajectories, last.totals.discarded_trajectories) == (
        len(ids),
        outcomes.get("discarded", 0),
    )


def test_short_rounds_race_and_long_rounds_finish_what_lost(tmp_path):
    """An epoch of 40 prompts in 10 rounds, P0 = 4, R0 = 2, both factors 1.5."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=10, prompts=4, tail=HALF_MORE))
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    check_whole(stage, rounds=10, prompts=4, responses=2)
    kinds = [report.kind for report in stage.closed]
    assert kinds == [SHORT, SHORT, LONG] * 3 + [PLAIN], "two losers a round: every third round is long"
    for report in stage.closed:
        short = report.kind is SHORT
        assert report.responses == 8
        assert (report.launched_prompts, report.launched_responses) == ((6, 18) if short else (4, 8))
        assert report.requeued_prompts == (2 if short else 0)
        assert (report.aborted_responses > 0) == short
        assert (report.discarded_tokens > 0) == short
        assert report.scored_reward is not None
    assert [report.deferred_prompts for report in stage.closed] == [2, 4, 0] * 3 + [0]
    assert stage.control.last.totals.requeued_prompts == 12
    assert max(report.deferred_prompts or 0 for report in stage.control.reports) == 4


def test_the_metrics_and_the_log_tell_what_the_race_cost(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, prompts=4, tail=HALF_MORE))
    stage.play()
    metrics, log = CoordinatorMetrics(), RoundLog(tmp_path)
    for report in stage.closed:
        trained = TrainReport(report.round, 0.0, 1.0, 1e-3, 0.0, 0.0, 1.0, 1, 0.1)
        metrics.round(report, trained)
        log(report, trained)

    def value(name, **labels):
        return metrics.registry.get_sample_value(f"rljob_coordinator_{name}", labels)

    assert (value("rounds_total", kind="Short"), value("rounds_total", kind="Long")) == (2, 1)
    assert value("responses_total", outcome="trained") == 24
    assert value("responses_total", outcome="discarded") == 2 * 18 + 8 - 24
    assert value("requeued_prompts_total") == 4
    assert value("discarded_tokens_total") == sum(report.discarded_tokens for report in stage.closed) > 0
    assert value("long_queue") == 0
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["deferredPrompts"]) for line in lines] == [("Short", 2), ("Short", 4), ("Long", 0)]
    assert all(line["launchedMeanTokens"] > 0 and line["discardedTokens"] >= 0 for line in lines)


def test_what_lost_is_aborted_on_its_engine(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=5, prompts=4, tail=HALF_MORE))
    stage.play()
    replicas = [stage.world.process(f"rollout-{index}/replica-0").peer for index in range(2)]
    assert not any(replica.held for replica in replicas)
    stats = [replica._stats() for replica in replicas]
    aborted = sum(report.aborted_responses for report in stage.closed)
    # Some of the losers ended on their engine while the abort was on its way.
    assert 0 < sum(stat.aborted_total for stat in stats) <= aborted
    assert sum(stat.generated_tokens_total for stat in stats) >= sum(report.tokens for report in stage.closed)
    # The mean is rounded, and their sum is whole.
    kept = sum(round(report.responses * report.mean_response_tokens) for report in stage.closed)
    thrown_away = sum(report.discarded_tokens for report in stage.closed)
    assert kept + thrown_away == sum(report.tokens for report in stage.closed)


def test_a_race_prefers_the_short_and_a_long_round_does_not(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=30, prompts=4, responses=4, tail=HALF_MORE))
    stage.play()
    check_whole(stage, rounds=30, prompts=4, responses=4)
    kept, launched = {}, {}
    for kind in (SHORT, LONG):
        reports = [report for report in stage.closed if report.kind is kind]
        kept[kind] = sum(report.mean_response_tokens for report in reports) / len(reports)
        launched[kind] = sum(report.launched_mean_tokens for report in reports) / len(reports)
    # Lengths are uniform from 1 to 40, for any caller.
    assert launched[SHORT] == pytest.approx(20.5, rel=0.15)
    assert kept[SHORT] < 0.8 * launched[SHORT]
    assert kept[LONG] == pytest.approx(launched[LONG], abs=0.01)
    assert kept[LONG] > launched[SHORT], "long rounds hold what was long"


def test_without_a_race_inside_prompts_all_their_responses_are_kept(tmp_path):
    tail = {"enabled": True, "promptFactor": 1.5, "responseFactor": 1}
    stage = Stage(tmp_path / "state.db", job=job(rounds=6, prompts=4, tail=tail))
    stage.play()
    check_whole(stage, rounds=6, prompts=4, responses=2)
    assert {report.launched_responses for report in stage.closed} == {12, 8}


def test_the_epoch_goes_on_into_the_next_while_its_long_prompts_wait(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=12, prompts=2, tail=HALF_MORE), prompts=SimulatedPrompts(5))
    stage.play()
    check_whole(stage, rounds=12, prompts=2, responses=2, size=5)


def test_the_same_seed_is_the_same_run(tmp_path):
    runs = []
    for name in ("a", "b"):
        stage = Stage(tmp_path / name, seed=5, job=job(rounds=6, prompts=4, tail=HALF_MORE))
        stage.play()
        runs.append((stage.control.reports, stage.trained_ids()))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("tail", [{}, HALF_MORE], ids=["plain", "tail batching"])
def test_groups_of_equal_rewards_are_replaced_by_other_prompts(tmp_path, tail):
    """Rewards of 0 and 1/2: half of the groups of two are worth nothing."""
    stage = Stage(
        tmp_path / "state.db",
        job=job(rounds=8, prompts=4, tail=tail, dynamic={"enabled": True, "maxPromptFactor": 100}),
        reward_levels=2,
    )
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    ids = [TrajectoryKey.parse(text) for text in stage.trained_ids()]
    assert len(ids) == len(set(ids)) == 8 * 4 * 2
    assert {report.reward for report in stage.closed} == {0.25}, "one right and one wrong answer to every prompt"
    assert stage.control.last.totals.filtered_groups > 8
    assert stage.control.last.deferred_prompts == 0
    store = Store(stage.path, "uid-1")
    assert store.boundaries.newest().cursor.position == 8 * 4 + stage.control.last.totals.filtered_groups
    store.close()


def test_a_round_that_has_drawn_all_it_may_trains_on_what_it_has(tmp_path):
    stage = Stage(
        tmp_path / "state.db",
        job=job(rounds=4, prompts=4, dynamic={"enabled": True, "maxPromptFactor": 1.5}),
        reward_levels=3,  # with two, each prompt of a round has equal rewards once in 64 rounds
    )
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    assert all(report.launched_prompts <= 6 for report in stage.closed)
    assert any(report.responses < 8 for report in stage.closed)


def test_a_task_that_teaches_nothing_ends_the_job_with_its_reason(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(dynamic={"enabled": True}), reward_levels=1)
    finished = stage.play()
    assert (finished.outcome, finished.reason) == (FinishedOutcome.FAILED, "NothingToLearn")
    assert finished.message.startswith("24 consecutive groups could not be trained on: the rewards")


@pytest.mark.parametrize("seed", range(6))
def test_machines_and_the_trainer_die_and_rewards_fail(tmp_path, seed):
    async def faults(stage):
        rng = random.Random(seed)
        for _ in range(4):
            await asyncio.sleep(rng.uniform(0.5, 5))
            stage.world.kill(rng.choice(["rollout-0", "rollout-1", "trainer"]))

    stage = Stage(tmp_path / "state.db", job=job(rounds=6, prompts=4, tail=HALF_MORE), seed=seed)
    stage.fails = {f"0.{index}": 1 for index in range(0, 24, 3)}
    assert stage.play(faults).outcome is FinishedOutcome.COMPLETE
    check_whole(stage, rounds=6, prompts=4, responses=2)


def test_a_rewind_brings_back_the_queue_of_its_round(tmp_path):
    async def fault(stage):
        await until(lambda: stage.rounds == [1, 2, 3])
        stage.world.kill("trainer")

    stage = Stage(tmp_path / "state.db", job=job(rounds=6, prompts=4, every_rounds=2, tail=HALF_MORE))
    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    assert stage.rounds == [1, 2, 3, 3, 4, 5, 6]
    assert [report.kind for report in stage.closed[2:4]] == [LONG, LONG], "played again with the prompts that waited"
    check_whole(stage, rounds=6, prompts=4, responses=2)


def test_fewer_rounds_than_planned_leave_long_prompts_and_say_so(tmp_path):
    async def edit(stage):
        await until(lambda: stage.rounds == [1, 2])
        stage.control.set_rounds(2)

    stage = Stage(tmp_path / "state.db", job=job(rounds=10, prompts=4, tail=HALF_MORE))
    assert stage.play(edit).outcome is FinishedOutcome.COMPLETE
    waiting = stage.control.last.deferred_prompts
    assert (len(stage.rounds), waiting) in ((2, 4), (3, 0))
