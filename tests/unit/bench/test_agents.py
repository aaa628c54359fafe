"""The agents' benchmark: a small run through the real gateway and runners has every figure, and loses no token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from hack.local_cluster.private.kwok import FakeNodes
from rljob_bench import agents as agents_bench
from rljob_bench.agents import Measured, Plan, agents, figures
from rljob_bench.lib.episodes import episode_jobs as jobs_module
from rljob_bench.lib.episodes import episode_peers, gateway_cost, own_writes
from rljob_bench.lib.episodes.episode_jobs import LABEL, EpisodeJobs, JobFigures, NotPlayed, episode_jobs, writes
from rljob_kube import kubeconfig
from rljob_kube.connection import Connection
from rljob_kube.errors import ApiError
from rljob_kube.resources import LEASE, NAMESPACE, RLJOB
from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt
from tests.support.operator.harness import Server


def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(episodes=4, blocks=2, concurrent=2, turn_seconds=0.01, runners=1, places=4)
    monkeypatch.setattr(agents_bench, "QUICK", plan)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    result = json.loads(json.dumps(agents(quick=True, seed=1)))
    values = {figure["name"]: figure["value"] for figure in result["figures"]}
    assert values["failed_episodes"] == values["differing_responses"] == 0
    assert 0 < values["acquire_p50_seconds"] <= values["acquire_p99_seconds"] < values["first_turn_p99_seconds"]
    assert 0 < values["generation_idle"] < 1
    rows = [(row["block"], row.get("episodes"), row.get("tokens")) for row in result["rows"]]
    tokens = rows[-1][2]
    assert rows == [("episodes", 4, None), ("plain", 4, None), ("gateway", None, tokens), ("direct", None, tokens)]
    assert values["gateway_cost"] > 0.5
    assert values["gateway_tokens_per_second"] > 0
    assert 0 < values["gateway_own_p99_seconds"] <= 60
    assert values["turn_added_p99_seconds"] > 0
    assert (result["bench"], result["settings"]["turns"]) == ("agents", 2)


def test_the_life_of_a_response_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first poll of a block reports the last ends of the block before again."""
    now = iter([10.0, 12.0, 50.0])
    monkeypatch.setattr(episode_peers, "time", SimpleNamespace(monotonic=lambda: next(now)))
    watch, prompt = episode_peers.Watch(Mock()), PromptKey(0, 1)
    watch.launch([Mock(key=TrajectoryKey(prompt, 0))])
    watch.ended(prompt)
    watch.ended(prompt)
    assert watch.lived_seconds == 2.0


def test_the_figures_compare_episodes_with_plain_generation() -> None:
    rows = [
        {"block": kind, "episodes": 50, "seconds": seconds}
        for kind, seconds in (("episodes", 2.0), ("plain", 1.0), ("episodes", 4.0), ("plain", 2.0))
    ]
    measured = Measured(rows, [0.01, 0.2], [0.3, 0.4], failed=1, differing=2, idle=0.25)
    found = {figure["name"]: figure for figure in figures(measured)}
    assert found["episodes_per_minute"]["value"] == 60 * 100 / 6
    assert found["episodes_per_minute"]["limit"] == 60 * 100 / 3
    assert (found["over_plain"]["value"], found["over_plain"]["limit"]) == (0.5, 1.0)
    assert (found["acquire_p99_seconds"]["value"], found["acquire_p99_seconds"]["goal"]) == (0.2, 0.1)
    assert (found["failed_episodes"]["value"], found["differing_responses"]["value"]) == (1, 2)
    assert found["generation_idle"]["value"] == 0.25
    assert not any(name.startswith("job_") for name in found), "without a cluster"


def test_the_gateways_cost_is_that_of_the_same_turns_in_the_same_run() -> None:
    rows = [
        {"block": kind, "tokens": 100, "seconds": seconds}
        for kind, seconds in (("gateway", 2.0), ("direct", 1.0), ("gateway", 3.0), ("direct", 3.0))
    ]
    rows += [{"block": kind, "episodes": 50, "seconds": 2.0} for kind in ("episodes", "plain")]
    own = [[("0.01", 90.0), ("0.02", 98.0), ("0.05", 100.0), ("+Inf", 100.0)]] * 2
    own.append([("0.01", 150.0), ("0.02", 160.0), ("0.05", 160.0), ("+Inf", 160.0)])
    added = [0.001] * 99 + [0.5]
    found = {one["name"]: one for one in figures(Measured(rows, [0.01], [0.3], added=added, own=own))}
    assert found["gateway_tokens_per_second"]["value"] == 40.0
    assert found["gateway_tokens_per_second"]["limit"] == 50.0
    assert (found["gateway_cost"]["value"], found["gateway_cost"]["goal"]) == (1.25, 1.05)
    assert found["gateway_cost"]["better"] == "lower"
    assert (found["gateway_own_p99_seconds"]["value"], found["gateway_own_p99_seconds"]["goal"]) == (0.05, 0.02)
    own[-1] = [(bound, count + 400) for bound, count in own[-1]]
    found = {one["name"]: one for one in figures(Measured(rows, [0.01], [0.3], added=added, own=own))}
    assert found["gateway_own_p99_seconds"]["value"] == 0.02, "356 of 360 are not 99 of 100, 756 of 760 are"
    own[-1] = [("0.01", 0.0), ("0.02", 0.0), ("0.05", 0.0), ("+Inf", 9.0)]
    found = {one["name"]: one for one in figures(Measured(rows, [0.01], [0.3], added=added, own=own))}
    assert found["gateway_own_p99_seconds"]["value"] == 60.0, "a number, in JSON too"


def test_turns_take_the_same_times_in_both_ways() -> None:
    engine = gateway_cost.PacedTurns(Mock(), 2.0, 7)
    episodes = [EpisodeAttempt(TrajectoryKey(PromptKey(1, index), 0), 1) for index in range(100)]
    drawn = [engine.seconds_of(one, 0) for one in episodes]
    assert drawn == [engine.seconds_of(replace(one, attempt=2), 0) for one in episodes]
    assert drawn != [engine.seconds_of(one, 1) for one in episodes]
    assert 1.0 <= min(drawn) < 1.2 < 2.8 < max(drawn) <= 3.0


def test_of_the_gateways_histogram_counts_what_a_block_has_added() -> None:
    text = "\n".join(
        [
            "# TYPE rljob_gateway_own_seconds histogram",
            'rljob_gateway_own_seconds_bucket{le="0.02"} 5.0',
            'rljob_gateway_own_seconds_bucket{le="+Inf"} 7.0',
            "rljob_gateway_own_seconds_count 7.0",
            "rljob_gateway_own_seconds_sum 0.5",
            "",
        ]
    )
    before = gateway_cost.own_buckets(text)
    assert before == [("0.02", 5.0), ("+Inf", 7.0)]
    assert gateway_cost.difference(before, [("0.02", 6.0), ("+Inf", 9.0)]) == [("0.02", 1.0), ("+Inf", 2.0)]
    assert gateway_cost.difference((), before) == before
    assert gateway_cost.total([before, before]) == [("0.02", 10.0), ("+Inf", 14.0)]


def test_episodes_as_jobs_stand_beside_ours() -> None:
    rows = [{"block": kind, "episodes": 60, "seconds": 2.0} for kind in ("episodes", "plain", "jobs")]
    jobs = JobFigures(1.0, episodes=4, seconds=8.0, writes=40, acquired=[1.0, 1.0, 1.0, 3.0])
    found = {one["name"]: one["value"] for one in figures(Measured(rows, [0.1], [0.2], jobs=jobs))}
    assert (found["job_episodes_per_minute"], found["over_jobs"]) == (30.0, 60.0)
    assert (found["job_acquire_p50_seconds"], found["job_acquire_p99_seconds"]) == (1.0, 3.0)
    assert found["job_generation_idle"] == 6.0 / (6.0 + 4 * 1.0), "a second each"
    assert found["job_writes_per_episode"] == 10.0


def test_writes_are_counted_for_what_a_job_makes() -> None:
    def line(verb: str, resource: str, count: int, code: int = 200) -> str:
        labels = f'code="{code}",resource="{resource}",scope="resource",subresource="",verb="{verb}"'
        return f"apiserver_request_total{{{labels}}} {count}"

    text = "\n".join(
        [
            "# TYPE apiserver_request_total counter",
            line("POST", "jobs", 3),
            line("PATCH", "pods", 4),
            line("POST", "events", 5),
            line("GET", "pods", 100),
            line("PATCH", "pods", 100, code=409),
            line("WATCH", "jobs", 100),
            line("PUT", "leases", 100),
            'apiserver_request_total_other{verb="POST",resource="pods"} 7',
            "",
        ]
    )
    assert writes(text) == 12


def test_writes_of_the_coordinator_stand_beside_those_of_the_jobs() -> None:
    rows = [{"block": kind, "episodes": 60, "seconds": 2.0} for kind in ("episodes", "plain")]
    counted = own_writes.WriteFigures(episodes=200, reports=5, renewals=3)
    found = {one["name"]: one for one in figures(Measured(rows, [0.1], [0.2], writes=counted))}
    assert (found["writes_per_episode"]["value"], found["writes_per_episode"]["goal"]) == (0.04, 0.1)
    assert found["lease_writes_per_episode"]["value"] == 0.015


async def test_writes_count_while_episodes_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_writes, "SETTLE_SECONDS", 0.0)
    reporter = Mock()
    found = own_writes.OwnWrites(reporter)
    found.wrote(LEASE)
    for episodes in (60, 3, 1, 70):
        found.begin()
        found.played(episodes)
        found.wrote(RLJOB)
        found.wrote(LEASE)
        found.wrote(LEASE)
        await found.end()
        found.wrote(RLJOB)  # between blocks
    assert found.figures == own_writes.WriteFigures(episodes=134, reports=4, renewals=8)
    assert [call.kwargs for call in reporter.event.call_args_list] == [{"round": 1}, {"round": 2}]
    assert reporter.update.call_count == 4
    found.forget()
    assert found.figures == own_writes.WriteFigures()


@pytest.mark.cluster
async def test_writes_are_counted_at_the_server_and_the_job_is_gone_afterwards(
    connection: Connection, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_writes, "COORDINATOR_LEASE_SECONDS", 3)
    job = agents_bench._job(Plan())

    async def namespaces() -> set[str]:
        return {one["metadata"]["namespace"] for one in await server.kube.list(RLJOB, None)}

    others = await namespaces()
    async with own_writes.own_writes(connection, job) as found:
        await asyncio.sleep(1.0)
        found.begin()
        for _ in range(4):
            found.played(own_writes.EPISODES_OF_ROUND)
            await asyncio.sleep(0.5)
        await found.end()
        await asyncio.sleep(0.1)
        (namespace,) = await namespaces() - others
    counted = found.figures
    assert counted.episodes == 4 * own_writes.EPISODES_OF_ROUND
    assert counted.reports == 4, "one a round"
    assert 1 <= counted.renewals <= 4, "one a second"
    assert namespace.startswith("bench-")
    left = await server.kube.get(NAMESPACE, None, namespace)
    assert left["metadata"]["deletionTimestamp"]


class StandInKube:
    """A server whose pods run immediately, or never, and whose first watches fail."""

    def __init__(self, runs: bool = True, failures: Sequence[ApiError] = (), metrics: ApiError | None = None) -> None:
        self.runs, self.failures, self.metrics = runs, list(failures), metrics
        self.names: list[str] = []
        self.made = asyncio.Event()

    async def create(self, resource: Any, job: Mapping[str, Any]) -> None:
        self.names.append(job["metadata"]["name"])
        self.made.set()

    async def delete(self, resource: Any, namespace: str, name: str) -> None:
        self.names.remove(name)

    async def list(self, *_: Any, **__: Any) -> Sequence[Any]:
        return self.names

    async def text(self, path: str) -> str:
        if self.metrics is not None:
            raise self.metrics
        return ""

    async def read_with_version(self, *_: Any, **__: Any) -> tuple[Sequence[Any], str]:
        return [], "1"

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[tuple[str, Any]]:
        if self.failures:
            raise self.failures.pop(0)
        while True:
            await self.made.wait()
            self.made.clear()
            for name in list(self.names) if self.runs else ():
                yield "ADDED", {"metadata": {"labels": {LABEL: name}}, "status": {"phase": "Running"}}


async def play(kube: StandInKube) -> JobFigures:
    player = EpisodeJobs(kube, "bench", 0.0)  # type: ignore[arg-type]
    await alongside(player.play(3, 2), player.watch())
    return player.figures


async def test_a_busy_server_ends_no_watch() -> None:
    busy = [ApiError(503, "", "busy"), ApiError(429, "TooManyRequests", "later"), ApiError(410, "Expired", "old")]
    assert (await play(StandInKube(failures=busy))).episodes == 3


@pytest.mark.parametrize(
    ("kube", "why"),
    [
        (StandInKube(runs=False), "the pod of Job episode-1-. does not run"),
        (StandInKube(metrics=ApiError(403, "Forbidden", "no")), "writes .* cannot be counted: 403 Forbidden"),
    ],
)
async def test_a_cluster_that_cannot_play_jobs_is_told_in_one_error(
    monkeypatch: pytest.MonkeyPatch, kube: StandInKube, why: str
) -> None:
    monkeypatch.setattr(jobs_module, "STALL_SECONDS", 0.05)
    with pytest.raises(NotPlayed, match=why):
        await play(kube)


@pytest.mark.cluster
async def test_episodes_are_played_as_jobs_and_leave_nothing(fake_nodes: FakeNodes) -> None:
    connection = kubeconfig.load([fake_nodes.server.kubeconfig])
    async with episode_jobs(connection, 0.2) as jobs:
        await jobs.play(2, 1)
        jobs.forget()
        seconds = await jobs.play(4, 2)
        namespace = jobs.namespace
        found = jobs.figures
        assert fake_nodes.server.client().get(f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"] == []
    assert (found.episodes, len(found.acquired), found.seconds) == (4, 4, seconds)
    assert seconds > 2 * 0.2, "two at a time"
    assert found.writes / 4 >= 6, "a Job, its pod, its node, its phase, and the removal of both"
