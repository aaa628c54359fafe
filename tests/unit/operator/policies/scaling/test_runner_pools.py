"""Runner pools: as many runners as open episodes fill, sooner more than fewer, and always within the bounds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.environments import Environment
from rljob_api.status import EnvironmentLoad, EpisodesReport, RoundReport, RunnerPool
from rljob_operator.policies.scaling.runner_pools import ROUNDS, pool_size
from tests.support.operator.environment_jobs import calc, with_environments
from tests.support.operator.plan_cluster import Cluster
from tests.support.operator.plan_queue import Queued

CALC = {"name": "calc", "kind": "Tools", "tools": [{"function": "calculator.py:add"}], "episodesPerRunner": 4}
ELASTIC = {"runners": 2, "minRunners": 1, "maxRunners": 5}


def environment(**changes: Any) -> Environment:
    return Environment.model_validate({**CALC, **ELASTIC, **changes})


def closed(number: int, training: int, name: str = "calc", evaluations: int = 0) -> RoundReport:
    """The report of a round, with the open episodes of training and of evaluations."""
    load = EnvironmentLoad(name=name, most_open=training + evaluations, most_training=training)
    return RoundReport(round=number, episodes=EpisodesReport(environments=(load,)))


def played(one: Environment, *most_open: int) -> list[int]:
    """The runners after each of these rounds."""
    pool, found = None, []
    for number, most in enumerate(most_open, 1):
        pool = pool_size(one, pool, closed(number, most))
        found.append(pool.runners)
    return found


@pytest.mark.parametrize(
    ("what", "most_open", "runners"),
    [
        ("fits", (8,), [2]),
        ("one more episode needs one more runner", (9,), [3]),
        ("never above the bound", (1000,), [5]),
        ("fewer only after four rounds", (8, 4, 4, 4, 4), [2, 2, 2, 2, 1]),
        ("never below the bound", (0, 0, 0, 0, 0), [2, 2, 2, 1, 1]),
        ("the greatest need of four rounds stays", (20, 4, 12, 4, 4, 4, 4), [5, 5, 5, 5, 3, 3, 1]),
        ("a round may need more at any time", (4, 4, 4, 4, 13), [2, 2, 2, 1, 4]),
    ],
)
def test_the_number_follows_the_open_episodes(what: str, most_open: tuple[int, ...], runners: list[int]) -> None:
    assert played(environment(), *most_open) == runners, what


EVALUATED = {"runners": 2, "minRunners": 1, "maxRunners": 64, "episodesPerRunner": 8}


@pytest.mark.parametrize(
    ("what", "training", "evaluations", "runners"),
    [
        ("one does not add runners", (16, 16, 16), (0, 256, 0), [2, 2, 2]),
        ("one does not keep runners", (16, 8, 8, 8, 8), (0, 256, 0, 256, 0), [2, 2, 2, 2, 1]),
        ("a round with one may need more itself", (16, 24, 16), (0, 256, 0), [2, 3, 3]),
        ("an environment of evaluations alone", (0, 0, 0, 0), (256, 0, 256, 0), [2, 2, 2, 1]),
    ],
)
def test_evaluations_use_the_runners_of_training(
    what: str, training: tuple[int, ...], evaluations: tuple[int, ...], runners: list[int]
) -> None:
    pool, found = None, []
    for number, (most, more) in enumerate(zip(training, evaluations, strict=True), 1):
        pool = pool_size(environment(**EVALUATED), pool, closed(number, most, evaluations=more))
        found.append(pool.runners)
    assert found == runners, what


def test_an_earlier_coordinator_reports_no_episodes_of_training_alone() -> None:
    episodes = EpisodesReport(environments=(EnvironmentLoad(name="calc", most_open=17),))
    assert pool_size(environment(), None, RoundReport(round=1, episodes=episodes)).open == (17,)


@pytest.mark.parametrize(("before", "after", "runners"), [(32, 2, (2, 32)), (2, 32, (32, 2)), (16, 8, (4, 8))])
def test_an_edit_of_what_a_runner_runs_counts_for_rounds_before(before: int, after: int, runners: tuple[int, int]):
    bounds = {"runners": 8, "minRunners": 1, "maxRunners": 64}
    pool: RunnerPool | None = None
    for number in range(1, 6):
        pool = pool_size(environment(**bounds, episodesPerRunner=before), pool, closed(number, 64))
    assert pool is not None
    edited = pool_size(environment(**bounds, episodesPerRunner=after), pool, closed(5, 64))
    assert (pool.runners, edited.runners) == runners


def test_a_fixed_number_stays() -> None:
    assert played(environment(minRunners=2, maxRunners=2), 1000, 0) == [2, 2]
    fixed = Environment.model_validate({**CALC, "runners": 3})
    assert (fixed.fewest_runners, fixed.most_runners) == (3, 3)
    assert played(fixed, 1000) == [3]


def test_a_round_counts_once_and_a_repeated_one_forgets_later_rounds() -> None:
    one = environment()
    pool = pool_size(one, None, closed(5, 17))
    assert (pool.runners, pool.open) == (5, (17,))
    assert pool_size(one, pool, closed(5, 1)) == pool
    assert pool_size(one, pool, None) == pool
    again = pool_size(one, pool, closed(3, 4))
    assert (again.round, again.open) == (3, (4,))


def test_another_number_in_the_spec_resets_the_memory() -> None:
    grown = pool_size(environment(), None, closed(1, 17))
    edited = pool_size(environment(runners=3), grown, closed(1, 17))
    assert (edited.runners, edited.start, edited.open) == (3, 3, ())


def test_a_report_without_the_environment_says_that_it_had_no_episode() -> None:
    assert pool_size(environment(), None, closed(1, 50, "other")).open == (0,)


@given(st.lists(st.integers(0, 200), max_size=20), st.integers(1, 4), st.integers(0, 4))
def test_it_is_within_its_bounds_and_serves_the_last_round(most_open: list[int], fewest: int, more: int) -> None:
    one = environment(runners=fewest, minRunners=fewest, maxRunners=fewest + more)
    pool: RunnerPool | None = None
    for number, most in enumerate(most_open, 1):
        before, pool = pool, pool_size(one, pool, closed(number, most))
        assert fewest <= pool.runners <= fewest + more
        if more:
            assert pool.runners * one.episodes_per_runner >= min(most, (fewest + more) * one.episodes_per_runner)
            fewer = before is not None and pool.runners < before.runners
            assert not fewer or len(pool.open) == ROUNDS


# --- in a plan --------------------------------------------------------------------------------------------------------


def at_work(cluster: Cluster) -> Cluster:
    cluster.settle()
    if isinstance(cluster, Queued):
        cluster.admit_all()
        cluster.settle()
    cluster.start_all()
    cluster.run_runners()
    cluster.settle()
    return cluster


def report(cluster: Cluster, number: int, most_open: int) -> list[str]:
    """The coordinator reports a round; return the events that follow."""
    cluster.now += timedelta(seconds=10)
    load = {"name": "calc", "mostOpen": most_open}
    cluster.report(event=number, lastRound={"round": number, "episodes": {"environments": [load]}})
    told = [f"{event.reason}: {event.message}" for event in cluster.decide().events]
    cluster.settle()
    return told


def test_a_plan_scales_the_deployment_and_tells_why() -> None:
    cluster = at_work(Cluster(with_environments(calc(**ELASTIC, episodesPerRunner=4))))
    assert cluster.applied == [("calc", 2)]
    told = report(cluster, 1, 11)
    assert "RunnersScaledUp: calc: from 2 to 3 runners (open episodes of training in the last rounds: 11)" in told
    assert cluster.applied == [("calc", 2), ("calc", 3)]
    assert [one.runners for one in cluster.status.environments] == [3]
    told = [line for number in range(2, 6) for line in report(cluster, number, 4)]
    assert [line for line in told if line.startswith("Runners")] == [
        "RunnersScaledDown: calc: from 3 to 1 runners (open episodes of training in the last rounds: 4, 4, 4, 4)"
    ]
    assert cluster.applied[-1] == ("calc", 1)
    assert cluster.decide().empty


def test_a_suspended_job_remembers_its_number() -> None:
    cluster = at_work(Cluster(with_environments(calc(**ELASTIC, episodesPerRunner=4))))
    report(cluster, 1, 11)
    for suspend in (True, False):
        spec = cluster.job.spec.model_copy(update={"suspend": suspend})
        cluster.job = cluster.job.model_copy(update={"spec": spec})
        cluster.settle()
        if suspend:
            target = cluster.status.target
            assert target is not None
            cluster.report(applied=target.revision, stage="Suspended")
            cluster.settle()
            cluster.pods = {}
            cluster.run_runners()
            cluster.settle()
            assert [one.runners for one in cluster.status.environments] == [0]
    assert cluster.applied[-1] == ("calc", 3)


def test_a_queue_is_asked_for_the_most_and_fewer_are_ready() -> None:
    cluster = at_work(Queued(with_environments(calc(**ELASTIC))))
    assert isinstance(cluster, Queued)
    sets = {one["name"]: one["count"] for one in cluster.workloads["demo-base"]["spec"]["podSets"]}
    assert sets["environment-calc"] == 5
    assert cluster.parsed("demo-base").holds("PodsReady")
    cluster.runners["calc"] = replace(cluster.runners["calc"], ready=1)
    cluster.settle()
    assert not cluster.parsed("demo-base").holds("PodsReady")
