"""Metrics of episodes equal a second computation from the store, whatever failed meanwhile."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest

from rljob_api.spec.training import Mode
from rljob_api.status import EpisodesReport, RoundReport
from rljob_api.status.episodes import MOST_METRICS
from rljob_runtime.coordinator.episodes.episode_rows import MOST_SAMPLES, slowest_intervals
from rljob_runtime.coordinator.episodes.episodes import MANY_FORKS, ManyTurns
from rljob_runtime.coordinator.episodes.metrics import MetricNames, environment_metrics
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.observers.round_metrics import round_metrics
from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.scheduling.episodes.counts import told_forks
from rljob_runtime.scheduling.episodes.episode import Versions
from rljob_runtime.scheduling.episodes.levels import Level
from rljob_runtime.scheduling.episodes.limits import Limits
from rljob_runtime.simulator.core.events import Trained
from rljob_runtime.simulator.peers.runners import Fault, HarnessScript
from rljob_runtime.timeline.record import LEVELS
from tests.support.episode_book import KEY, bench
from tests.support.episode_job import EpisodeStage
from tests.support.simulated_job import job

TRAINED = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0)
FAULTS = ((Fault.CRASH, 80), (Fault.FAILURE, 80), (Fault.REWRITE, 300), (Fault.REPEAT, 150))


def stage_of(path: Path, mode: Mode, versions: Versions = Versions.SINGLE) -> EpisodeStage:
    script = HarnessScript(turns=5, tool_seconds=1.5, faults=FAULTS, seed=3)
    made = job(rounds=4, prompts=3, responses=3, mode=mode)
    return EpisodeStage(path / "state.db", job=made, script=script, limits=Limits(turns=4), versions=versions)


@pytest.mark.parametrize(
    ("mode", "versions"),
    [(Mode.ON_POLICY, Versions.SINGLE), (Mode.ASYNCHRONOUS, Versions.SINGLE), (Mode.ASYNCHRONOUS, Versions.MIXED)],
)
def test_each_metric_is_that_of_a_second_computation_from_the_store(tmp_path, mode, versions):
    stage = stage_of(tmp_path, mode, versions)
    stage.play()
    reports = episodes_of(stage)
    assert len(reports) == 4
    with closing(sqlite3.connect(stage.path)) as db:
        for number, report in reports.items():
            assert measured(report) == second(db, number)
            told = {one.name: (one.episodes, one.mean) for one in report.metrics or ()}
            assert told == metric_means(db, number)
            assert told.keys() == {"tokens"}, "of the simulated environment"
        failed = Counter(dict(db.execute("SELECT cause, COUNT(*) FROM episodes WHERE state = 'aborted' GROUP BY 1")))
        ended = db.execute("SELECT COUNT(*) FROM episodes WHERE state IS NOT NULL").fetchone()[0]
    told = Counter({one.part: 0 for report in reports.values() for one in report.failed_attempts or ()})
    for report in reports.values():
        told.update({one.part: one.attempts for one in report.failed_attempts or ()})
    # The last attempts end after the last round, and count in none.
    assert told.keys() == failed.keys() - {"not needed"}
    assert 0 < told.total() <= failed.total() - failed["not needed"]
    assert 36 <= sum(report.attempts or 0 for report in reports.values()) <= ended
    assert 0 < sum(report.retries or 0 for report in reports.values()) <= stage.totals().retries
    assert any(report.forks for report in reports.values())
    assert any(report.truncated_by_turns for report in reports.values())
    assert {report.reencoded_tokens for report in reports.values()} == {0}
    assert {report.fake_zeros for report in reports.values()} == {0}
    assert {report.prefix_hit_share for report in reports.values()} == {None}, "simulated engines do not report it"
    newer = sum(report.turns_of_newer_weights or 0 for report in reports.values())
    assert (newer > 0) == (versions is Versions.MIXED)


def test_episodes_of_evaluations_are_no_load_of_training(tmp_path):
    evaluation = [{"name": "check", "everyRounds": 2, "maxPrompts": 6, "responsesPerPrompt": 8}]
    made = job(rounds=4, prompts=3, responses=3, mode=Mode.ON_POLICY, evaluation=evaluation)
    stage = EpisodeStage(tmp_path / "state.db", job=made, script=HarnessScript(turns=3, tool_seconds=1.5))
    stage.play()
    loads = [load for report in episodes_of(stage).values() for load in report.environments or ()]
    assert [load.most_training for load in loads] == [9] * 4, "the responses of a round"
    assert max(load.most_open for load in loads) > 9 == min(load.most_open for load in loads)


@pytest.mark.parametrize("mode", [Mode.ON_POLICY, Mode.ASYNCHRONOUS])
def test_a_restarted_coordinator_measures_episodes_that_another_one_began(tmp_path, mode):
    stage = stage_of(tmp_path, mode)
    stage.play_through([23, 61])
    assert len(stage.books) == 3
    reports = episodes_of(stage)
    with closing(sqlite3.connect(stage.path)) as db:
        for number, report in reports.items():
            assert measured(report) == second(db, number)
            assert {one.name: (one.episodes, one.mean) for one in report.metrics or ()} == metric_means(db, number)


@pytest.mark.parametrize("mode", [Mode.ON_POLICY, Mode.ASYNCHRONOUS])
def test_a_failure_of_ours_with_a_reward_is_counted_by_the_store(tmp_path, mode):
    """The attempts' ends change in the store alone, as if the scorer had not looked at them."""
    stage = EpisodeStage(tmp_path / "state.db", job=job(rounds=2, prompts=2, responses=2, mode=mode))

    def fail(event) -> None:
        if isinstance(event, Trained) and event.step == 2:
            prompt = event.groups[0].prompt
            newest = "SELECT MAX(id) FROM episodes WHERE NOT former AND epoch = ? AND idx = ? GROUP BY sample"
            stage.store._db.execute("DROP TRIGGER attempt_ends_once")
            stage.store._db.execute(
                "UPDATE episodes SET state = 'aborted', cause = 'environment', reached = NULL, reward = NULL"
                f" WHERE id IN ({newest})",
                (prompt.epoch, prompt.index),
            )

    stage.watchers.append(fail)
    stage.play()
    assert [report.fake_zeros for report in episodes_of(stage).values()] == [0, 2]


@pytest.mark.parametrize("mode", [Mode.ON_POLICY, Mode.ASYNCHRONOUS])
def test_many_forks_are_a_warning(tmp_path, mode):
    script = HarnessScript(turns=5, tool_seconds=0.1, faults=((Fault.REWRITE, 300),), seed=3)
    stage = EpisodeStage(tmp_path / "state.db", job=job(rounds=3, prompts=6, responses=4, mode=mode), script=script)
    stage.play()
    warned = [one.message for report in stage.control.reports for one in report.warnings if one.reason == MANY_FORKS]
    assert "turns since the round before opened a branch" in warned[0]


async def test_a_round_with_few_forks_withdraws_the_warning(tmp_path, caplog):
    warned = []
    async with bench(tmp_path) as made:
        episodes = ManyTurns(made.book)
        telling = asyncio.ensure_future(episodes.run(lambda reason, warning: warned.append((reason, warning))))
        await asyncio.sleep(0)
        made.book.totals.turns, made.book.totals.forks = 100, 6
        episodes.measure([], Timeline())
        made.book.totals.turns += 100
        episodes.measure([], Timeline())
        telling.cancel()
    assert [(reason, warning is not None) for reason, warning in warned] == [(MANY_FORKS, True), (MANY_FORKS, False)]
    assert [one.getMessage() for one in caplog.records] == [told_forks(100, 6)]


@pytest.mark.parametrize(
    ("turns", "forks", "told"), [(100, 6, True), (100, 5, False), (50, 3, True), (49, 49, False), (0, 0, False)]
)
def test_forks_are_told_above_their_share(turns, forks, told):
    text = told_forks(turns, forks)
    assert (text is not None) == told
    if text is not None:
        assert text.startswith(f"{forks} of {turns} turns")


@pytest.mark.parametrize("mode", [Mode.ON_POLICY, Mode.ASYNCHRONOUS])
def test_the_timeline_has_the_model_and_tool_time_of_episodes(tmp_path, mode):
    script = HarnessScript(turns=5, tool_seconds=1.5, seed=3)
    stage = EpisodeStage(tmp_path / "state.db", job=job(rounds=3, prompts=4, responses=4, mode=mode), script=script)
    records = []
    stage.observers.append(lambda report, trained: stage.coordinator._reporter.timeline.written(records.append))
    stage.play()
    assert [record.round for record in records] == [1, 2, 3]
    places = set()
    with closing(sqlite3.connect(stage.path)) as db:
        for record in records:
            rows = {}
            for one in record.intervals:
                if one.row.startswith("episodes calc/slowest"):
                    rows.setdefault(one.row, []).append(one)
            assert sorted(rows) == [f"episodes calc/slowest {number}" for number in range(1, 9)]
            for parts in rows.values():
                assert all(one.until == later.since for one, later in pairwise(parts))
                attempt = parts[0].args["attempt"]
                started, ended = db.execute("SELECT started, ended FROM episodes WHERE id = ?", (attempt,)).fetchone()
                query = "SELECT opened, stored_at FROM turns WHERE episode = ? AND kind = 'sampled'"
                turns = db.execute(query, (attempt,)).fetchall()
                assert (parts[0].since, parts[-1].until) == (started, ended)
                model = sum(one.until - one.since for one in parts if one.name == "model")
                assert model == pytest.approx(covered(turns))
                assert parts[0].args["turns"] == len(turns)
            lengths = [parts[-1].until - parts[0].since for _, parts in sorted(rows.items())]
            assert lengths == sorted(lengths, reverse=True)
            trained = "SELECT ended - started FROM episodes WHERE step = ? ORDER BY 1 DESC"
            assert lengths == [seconds for (seconds,) in db.execute(trained, (record.round,))][:8]
            levels = [one.args for one in record.intervals if one.row == "episodes calc/open"]
            assert len(levels) <= MOST_SAMPLES
            places |= {name for one in levels for name in one}
    assert places == {"model", "outside", "waiting for a runner"}, "an update may close before a sample is due"
    levels = [one.args for record in records for one in record.intervals if one.name == LEVELS]
    assert any(level["outside"] > 4 for level in levels)
    assert all(sum(level.values()) <= 32 for level in levels)


async def test_rows_of_episodes_are_on_the_clock_of_the_loop(tmp_path):
    async with bench(tmp_path) as made:
        await made.launch()
        assert made.book.levels() == {"calc": Level(waiting=1)}
        episode = (await made.leased()).episode
        made.now[0] += 2
        assert made.book.levels() == {"calc": Level(outside=1)}
        asked = await made.asked(made.ask(episode, [1]))
        assert made.book.levels() == {"calc": Level(model=1)}
        made.now[0] += 1
        made.engine.emit([5])
        await made.replica.poll(1, 0, 5.0)
        await asked
        made.now[0] += 3
        await made.book.runners.done("calc", "r", episode, EpisodeReport(reward=1.0))
        found = slowest_intervals([made.book.finished(KEY)], to_loop=-900.0)
        assert [(one.name, one.since, one.until) for one in found] == [
            ("outside", 100, 102),
            ("model", 102, 103),
            ("outside", 103, 106),
        ]


def episodes_of(stage: EpisodeStage) -> dict[int, EpisodesReport]:
    return {report.round: report.episodes for report in stage.closed if report.episodes is not None}


FIELDS = (
    *("turns_mean", "turns_p50", "turns_p90", "turns_p99", "sampled_tokens", "given_tokens", "model_seconds"),
    *("outside_seconds", "truncated_by_turns", "truncated_by_tokens", "truncated_by_seconds", "truncated_by_forks"),
    *("forks", "turns_of_newer_weights"),
)


def measured(report: EpisodesReport) -> dict[str, float | None]:
    return {name: getattr(report, name) for name in FIELDS}


def second(db: sqlite3.Connection, number: int) -> dict[str, float | None]:
    """Compute the metrics of a round from the rows of its attempts."""
    ids = [one for (one,) in db.execute("SELECT id FROM episodes WHERE step = ?", (number,))]
    rows = [
        db.execute(
            "SELECT kind, parent, length(tokens) / 4, opened, stored_at, version FROM turns WHERE episode = ?", (one,)
        ).fetchall()
        for one in ids
    ]
    heads = [db.execute("SELECT started, ended, reached FROM episodes WHERE id = ?", (one,)).fetchone() for one in ids]
    turns = [sum(kind == "sampled" for kind, *_ in one) for one in rows]
    in_model = [covered([row[3:5] for row in one if row[0] == "sampled"]) for one in rows]
    outside = [ended - started - seconds for (started, ended, _), seconds in zip(heads, in_model, strict=True)]
    versions = [[row[5] for row in one if row[0] == "sampled"] for one in rows]
    share = lambda limit: near(mean(reached == limit for *_, reached in heads))  # noqa: E731
    return {
        "turns_mean": near(mean(turns)),
        "turns_p50": nearest_rank(turns, 50),
        "turns_p90": nearest_rank(turns, 90),
        "turns_p99": nearest_rank(turns, 99),
        "sampled_tokens": sum(row[2] for one in rows for row in one if row[0] == "sampled"),
        "given_tokens": sum(row[2] for one in rows for row in one if row[0] == "given"),
        "model_seconds": near(mean(in_model)),
        "outside_seconds": near(mean(outside)),
        "truncated_by_turns": share("turns"),
        "truncated_by_tokens": share("tokens"),
        "truncated_by_seconds": share("seconds"),
        "truncated_by_forks": share("forks"),
        "forks": sum(len(one) - len({row[1] for row in one}) for one in rows),
        "turns_of_newer_weights": sum(len(one) - one.count(min(one)) for one in versions),
    }


def metric_means(db: sqlite3.Connection, number: int) -> dict[str, tuple[int, object]]:
    """Compute the mean of each metric of a round, and the number of its episodes, from the rows of its attempts."""
    texts = [one for (one,) in db.execute("SELECT metrics FROM episodes WHERE step = ?", (number,))]
    found = [json.loads(text or "{}") for text in texts]
    names = {name for each in found for name in each}
    values = {name: [each[name] for each in found if name in each] for name in names}
    return {name: (len(each), near(mean(each))) for name, each in values.items()}


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the seconds in which at least one span is open, piece by piece."""
    points = sorted({point for span in spans for point in span})
    return sum(end - begin for begin, end in pairwise(points) if any(a <= begin and end <= b for a, b in spans))


def nearest_rank(values: Sequence[int], percent: int) -> int:
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


def near(value: float):
    return pytest.approx(value, rel=1e-3, abs=1e-6)


EPISODES = EpisodesReport(
    turns_mean=2.5, turns_p50=2, turns_p90=4, turns_p99=6, sampled_tokens=100, given_tokens=40, model_seconds=1.5,
    outside_seconds=0.5, truncated_by_turns=0.25, forks=3, reencoded_tokens=4, attempts=9, retries=2,
    fake_zeros=1, differing_traces=5, prefix_hit_share=0.75,
    turns_of_newer_weights=7, interrupted_turns=1, interrupted_tokens=20, load_wait_seconds=1.5,
    failed_attempts=[{"part": "tool server", "attempts": 1}],
    environments=[{"name": "calc", "most_open": 12, "wait_seconds": 0.75}],
    metrics=[{"environment": "calc", "name": "hops", "mean": 1.25, "episodes": 4}],
)  # fmt: skip


def test_prometheus_counts_rounds_and_shows_the_last_one():
    metrics = CoordinatorMetrics()
    for number in (1, 2):
        metrics.round(RoundReport(round=number, episodes=EPISODES), TRAINED)
    shown = generate_latest(metrics.registry).decode()
    for line in (
        'episode_turns{of="mean"} 2.5',
        'episode_turns{of="0.99"} 6.0',
        'episode_tokens_total{origin="sampled"} 200.0',
        'episode_tokens_total{origin="given"} 80.0',
        'episode_seconds{part="outside"} 0.5',
        'truncated_episodes{limit="turns"} 0.25',
        "episode_forks_total 6.0",
        "reencoded_tokens_total 8.0",
        "fake_zeros_total 2.0",
        "differing_traces_total 10.0",
        "prefix_hit_share 0.75",
        "episode_attempts_total 18.0",
        "turn_retries_total 4.0",
        "turns_of_newer_weights_total 14.0",
        "interrupted_turns_total 2.0",
        "interrupted_tokens_total 40.0",
        "turn_load_wait_seconds_total 3.0",
        'failed_attempts_total{part="tool server"} 2.0',
        'open_episodes{environment="calc"} 12.0',
        'runner_wait_seconds{environment="calc"} 0.75',
        'environment_metric{environment="calc",metric="hops"} 1.25',
    ):
        assert f"rljob_coordinator_{line}\n" in shown
    metrics.round(RoundReport(round=3, episodes=EpisodesReport()), TRAINED)
    assert "rljob_coordinator_prefix_hit_share NaN\n" in generate_latest(metrics.registry).decode()


def test_a_report_has_the_first_metrics_of_many_environments():
    """The status has a limited size, and each name is a curve. What some do not report counts in none of them."""
    reported = [{f"m{number:02}": number for number in range(60)}, {"m00": 4.0, "m07": 7.0}]
    trained = [
        (SimpleNamespace(environment=name, report=EpisodeReport(metrics=metrics)), None)
        for name, metrics in (("b", reported[0]), ("a", reported[0]), ("a", reported[1]))
    ]
    found = environment_metrics(trained)
    assert [(one.environment, one.name) for one in found] == sorted((one.environment, one.name) for one in found)
    assert len(found) == 120
    assert (found[0].mean, found[0].episodes, found[1].episodes, found[7].mean) == (2.0, 2, 1, 7.0)
    names = MetricNames(2)
    told = names.admit(found)
    assert Counter(one.environment for one in told) == {"a": 32, "b": 32}
    assert len(EpisodesReport(metrics=told).metrics) == MOST_METRICS
    # A name of a later task begins no curve, and those that have one keep it.
    later = replaced(found[:1], name="m99"), replaced(found[:1], environment="b")
    assert [names.admit(each) for each in later] == [(), later[1]]
    # So does one after a restart, also where names come first that fewer episodes have.
    restarted, fewer = MetricNames(2), replaced(found[:1], name="a", episodes=1)
    assert restarted.admit(EpisodesReport(metrics=told).metrics) == told
    assert restarted.admit((*fewer, *found)) == told
    assert MetricNames(60).admit((*fewer, *found[:1])) == found[:1]


def replaced(found, **changes):
    return tuple(one.model_copy(update=changes) for one in found)


def test_a_mean_beyond_all_numbers_is_left_out():
    """An environment may state any finite number, which no error of ours may follow."""
    values = [{"much": 1e308, "most": sys.float_info.max, "own": 1.0}, {"much": 1e308, "own": 2.0}]
    trained = [(SimpleNamespace(environment="a", report=EpisodeReport(metrics=each)), None) for each in values]
    assert [(one.name, one.mean) for one in environment_metrics(trained)] == [("own", 1.5)]


def test_observers_and_tensorboard_receive_them():
    found = round_metrics(RoundReport(round=1, episodes=EPISODES), TRAINED)
    assert found["environment/calc/hops"] == 1.25
    shown = {name: value for name, value in found.items() if name.startswith("episodes/")}
    assert shown == {
        "episodes/turns_mean": 2.5, "episodes/turns_p50": 2, "episodes/turns_p90": 4, "episodes/turns_p99": 6,
        "episodes/sampled_tokens": 100, "episodes/given_tokens": 40, "episodes/model_seconds": 1.5,
        "episodes/outside_seconds": 0.5, "episodes/truncated_by_turns": 0.25, "episodes/forks": 3,
        "episodes/reencoded_tokens": 4, "episodes/attempts": 9, "episodes/retries": 2, "episodes/failed/tool_server": 1,
        "episodes/turns_of_newer_weights": 7, "episodes/interrupted_turns": 1, "episodes/interrupted_tokens": 20,
        "episodes/load_wait_seconds": 1.5, "episodes/fake_zeros": 1, "episodes/differing_traces": 5,
        "episodes/prefix_hit_share": 0.75,
    }  # fmt: skip
