"""The benches run and end, and their figures mean what they say."""

from __future__ import annotations

import asyncio

import pytest

from rljob_bench import operator as operator_benchmarks
from rljob_bench.lib.kubernetes import operator_observers
from rljob_bench.lib.kubernetes.operator_observers import PodWatch, Stalled, beside, requests, served, settled
from rljob_bench.operator import operator_bench, recovery_bench
from rljob_kube.connection import Connection
from rljob_kube.resources import POD, Json
from tests.support.operator.harness import Server, manifest, options, running, until

UNCHANGING = "API requests a minute for a job in which nothing changes"


@pytest.mark.cluster
async def test_operator_bench_in_small(connection: Connection) -> None:
    report = await operator_bench(connection, jobs=4, idle_seconds=3)
    figures = {figure["name"]: figure for figure in report["figures"]}
    requests = figures["API requests per job"]
    assert requests["value"] >= requests["limit"] - 1  # all but the job itself are the operator's
    assert requests["value"] <= requests["limit"] + 8, "the operator has become talkative"
    assert figures["apply to all pods created, p50"]["value"] > 0
    assert (figures[UNCHANGING]["value"], figures[UNCHANGING]["limit"]) == (0.0, 0.4)
    assert figures["the same by the API server's count, for RLJobs alone"]["value"] == 0.0
    assert [row["who"] for row in report["rows"]] == ["bare client", "operator"]


@pytest.mark.cluster
async def test_recovery_bench_in_small(connection: Connection) -> None:
    report = await recovery_bench(connection, failures=4, jobs=2)
    assert len(report["rows"]) == 4
    assert all(row["seconds"] > 0 for row in report["rows"])


@pytest.mark.cluster
async def test_a_job_that_waits_for_nodes_costs_no_request(
    connection: Connection, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods find no node, it is Stalled for that: time alone changes nothing any more."""
    monkeypatch.setattr("rljob_operator.policies.base.periods.SECOND_RESYNC_SECONDS", 1.0)
    async with running(connection, options(server.namespace, resync_seconds=3600.0)) as operator:
        before_all = await served(connection)
        await server.apply_job()
        await server.until_members({f"demo-{machine}-1" for machine in ("coordinator-0", "trainer-0", *_ROLLOUT)})
        for name in await server.pods():
            await server.set_pod(name, conditions=[_NO_NODE])
        await server.until(lambda job: any(c["type"] == "Stalled" for c in job["status"].get("conditions") or ()))
        assert await settled(operator, calm=1.0, at_most=30.0)
        before, before_there = requests(operator), await served(connection)
        await asyncio.sleep(4.0)
        assert requests(operator) - before == {}
        assert await served(connection) - before_there == {}
    assert (before_there - before_all)["GET"] >= 1, "the API server's count does not see what the operator sends"
    assert before["get rljobs"] >= 1


_ROLLOUT = ("rollout-0", "rollout-1")
_NO_NODE: Json = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes"}


@pytest.mark.cluster
async def test_the_watch_goes_on_where_the_server_ends_its_stream(connection: Connection, server: Server) -> None:
    """A server does so at its time limit, and when the reader is slow."""
    watch = PodWatch(connection, [server.namespace], stream_seconds=1)
    async with watch.running():
        pods = [_without_owner(m) for m in operator_benchmarks._objects_of(manifest(namespace=server.namespace))[-4:]]
        for pod in pods:
            streams = watch.streams
            await server.kube.create(POD, pod)
            await until(lambda before=streams: _is(watch.streams > before), seconds=30)
        async with asyncio.timeout(30):
            await watch.all_created({(server.namespace, "demo"): 0.0}, 4)
    assert set(watch.seen[server.namespace, "demo"]) == {pod["metadata"]["name"] for pod in pods}


def _without_owner(pod: Json) -> Json:
    """For a server on which nothing else of the job is."""
    del pod["metadata"]["ownerReferences"]
    pod["spec"]["serviceAccountName"] = "default"
    return pod


async def _is(value: bool) -> bool:
    return value


async def test_a_wait_ends_where_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_observers, "STALL_SECONDS", 0.1)
    watch = PodWatch(Connection(server="http://127.0.0.1:9"), ["nowhere"])
    with pytest.raises(Stalled, match="10 pods of 1 jobs: no new pod for 0 s, 0 seen"):
        async with asyncio.timeout(10):
            await watch.all_created({("nowhere", "demo"): 0.0}, 10)


async def test_what_runs_beside_and_fails_ends_the_wait_for_it() -> None:
    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        async with asyncio.timeout(10), beside("it", fails(), lambda task: None):
            await asyncio.Event().wait()


async def test_what_runs_beside_may_not_end_early() -> None:
    with pytest.raises(Stalled, match="it ended by itself"):
        async with asyncio.timeout(10), beside("it", asyncio.sleep(0.01), lambda task: None):
            await asyncio.Event().wait()


async def test_what_does_not_stop_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_observers, "_END_SECONDS", 0.05)
    with pytest.raises(Stalled, match="it did not end"):
        async with asyncio.timeout(10), beside("it", asyncio.sleep(3600.0), lambda task: None):
            pass
