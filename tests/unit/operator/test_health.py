"""Health: the operator's liveness and its endpoints."""

from __future__ import annotations

from aiohttp.test_utils import TestClient, TestServer

from rljob_operator.health import Health, WatchLag
from rljob_operator.metrics import Metrics


async def test_liveness_notices_what_is_stuck() -> None:
    now = 0.0
    health = Health(Metrics(), clock=lambda: now)
    health.standby = False
    assert health.stuck() is None
    health.queue_seconds = lambda: 400.0
    assert "queue" in (health.stuck() or "")
    health.queue_seconds = lambda: 0.0
    health.watch_seconds = lambda: 200.0
    assert "watch" in (health.stuck() or "")
    health.watch_seconds = lambda: 0.0
    now = 5000.0
    assert "resync" in (health.stuck() or "")
    health.standby = True  # a standby has nothing that could be stuck
    assert health.stuck() is None


async def test_endpoints() -> None:
    health = Health(Metrics())
    async with TestClient(TestServer(health.application())) as client:
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 503
        health.problem = None
        assert (await client.get("/readyz")).status == 200
        assert "rljob_operator_queue_depth" in await (await client.get("/metrics")).text()
        health.standby, health.queue_seconds = False, lambda: 1e6
        assert (await client.get("/healthz")).status == 503


def test_a_watch_that_shows_nothing_any_more() -> None:
    now = 0.0
    lag = WatchLag(clock=lambda: now)
    key = ("ns", "demo")
    lag.listed({key: "7"}, {key: "7"})
    assert lag.check({key: "7"}) == 0.0
    lag.listed({key: "9"}, {key: "7"})
    now = 50.0
    assert lag.check({key: "7"}) == 50.0
    lag.listed({key: "9"}, {key: "7"})  # the next resync does not start the clock again
    assert lag.check({key: "7"}) == 50.0
    assert lag.check({key: "9"}) == 0.0
