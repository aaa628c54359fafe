"""Runners lease, live and report through the routes. A key opens its own environment, and bad bodies are refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rljob_api.keys.runner_key import mint_runner_key, runners_key, verify_runner_key
from rljob_api.keys.signed_text import KeyRefused, Refusal
from rljob_runtime.gateway.capability import Capability, gateway_key, verify
from rljob_runtime.gateway.environment_routes import AgentSide, EnvironmentRoutes, RunnerAccess
from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.gateway.gateway import Gateway
from rljob_runtime.gateway.histories import ContextLimit
from rljob_runtime.gateway.memory import Memory, Sender
from rljob_runtime.gateway.server import ServerSettings, gateway_app
from rljob_runtime.gateway.wire.repeats import Repeats
from rljob_runtime.gateway.wire.runner_requests import MOST_EPISODES, MOST_TEXTS, parse_done, parse_heartbeat
from rljob_runtime.protocols.environments import (
    MOST_ANSWER,
    RUNNERS_PARTS,
    Assignment,
    EpisodeReport,
    FailedPart,
    HarnessLimit,
)
from rljob_runtime.protocols.errors import PeerGone, PeerTimeout
from rljob_runtime.protocols.turns import EpisodeAttempt
from rljob_runtime.scheduling.byte_budget import ByteBudget
from tests.support.gateway.site import SETTINGS, make_site
from tests.support.gateway.stand_in_coordinator import attempt_of
from tests.support.gateway.stand_in_environments import StandInEnvironments
from tests.support.waiting import until

SECRET = b"the job's secret"
KEY, RUNNERS = gateway_key(SECRET), runners_key(SECRET)
CALC = mint_runner_key(RUNNERS, "calc")
RECORD = {"prompt": "2+3", "answer": 5}
MESSAGES = [{"role": "user", "content": "2+3"}]
LONG_RECORD = 24 << 20
ACCESS = RunnerAccess(RUNNERS, KEY, "policy", most_bytes=2_000, look_seconds=0.05)


def assignment(index: int = 0, environment: str = "calc", deadline: float = 60.5) -> Assignment:
    return Assignment(attempt_of(index), environment, RECORD, MESSAGES, deadline)


def side_of(gateway: Gateway) -> AgentSide:
    return AgentSide(ServerSettings().memory(), gateway.histories, gateway.context_limit, gateway.repeats)


def named(episode: EpisodeAttempt) -> dict[str, Any]:
    return {"episode": str(episode.key), "attempt": episode.attempt}


@dataclass
class Answered:
    status: int
    body: Any
    retry_after: str | None


@dataclass
class Site:
    """The gateway's server with a stand-in for the coordinator."""

    environments: StandInEnvironments
    routes: EnvironmentRoutes
    server: web.AppRunner
    session: aiohttp.ClientSession = field(default_factory=aiohttp.ClientSession)

    @property
    def url(self) -> str:
        host, port = self.server.addresses[0][:2]
        return f"http://{host}:{port}"

    async def post(self, route: str, key: str = CALC, raw: bytes | None = None, **body: Any) -> Answered:
        headers = {"Authorization": f"Bearer {key}"}
        data = json.dumps(body).encode() if raw is None else raw
        async with self.session.post(f"{self.url}/env/{route}", data=data, headers=headers) as got:
            text = await got.text()
            return Answered(got.status, json.loads(text) if text else None, got.headers.get("Retry-After"))

    async def lease(self, key: str = CALC, **more: Any) -> Answered:
        return await self.post("lease", key, **{"runner": "r1", "waitSeconds": 0.2, **more})

    async def done(self, episode: EpisodeAttempt, runner: str = "r1", key: str = CALC, **more: Any) -> Answered:
        return await self.post("done", key, runner=runner, **named(episode), **more)


@contextlib.asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[web.AppRunner]:
    """Serve as the gateway does: a handler goes on when its client has left."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner
    await runner.cleanup()


def connections(site: Site) -> list[Any]:
    """Return the server's open connections. It keeps those of requests that it still answers, without a transport."""
    assert site.server.server is not None
    return [one for one in site.server.server.connections if one.transport is not None]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    environments = StandInEnvironments()
    routes = EnvironmentRoutes(environments, ACCESS, now=lambda: 10.0)
    app: web.Application = gateway_app(make_site().gateway, KEY, lambda: 10.0, ServerSettings())
    routes.add_to(app)
    async with served(app) as server:
        made = Site(environments, routes, server)
        yield made
        await made.session.close()


async def test_a_runner_receives_the_attempt_with_its_capability(site: Site) -> None:
    await site.environments.put(assignment())
    got = await site.lease(environment="calc")
    assert got.status == 200
    capability = verify(KEY, got.body.pop("apiKey"), 60)
    assert capability == Capability(attempt_of(), 61)
    assert got.body == {
        "episode": "0.0.0",
        "attempt": 1,
        "environment": "calc",
        "record": RECORD,
        "messages": MESSAGES,
        "deadline": 60.5,
        "secondsLeft": 50.5,
        "baseUrl": f"{site.url}/v1",
        "model": "policy",
    }
    assert site.environments.leased == {attempt_of(): "calc/r1"}
    assert site.routes.stats.leased == 1


async def test_a_runner_receives_the_trace_of_a_traced_attempt(site: Site) -> None:
    await site.environments.put(replace(assignment(), traceparent="00-1-2-01"))
    assert (await site.lease()).body["traceparent"] == "00-1-2-01"


async def test_agents_may_reach_the_gateway_elsewhere_than_their_runner(site: Site) -> None:
    routes = EnvironmentRoutes(
        site.environments, RunnerAccess(RUNNERS, KEY, "m", "http://job-gateway:8000"), lambda: 0.0
    )
    app = web.Application()
    routes.add_to(app)
    await site.environments.put(assignment())
    async with served(app) as server:
        other = Site(site.environments, routes, server, site.session)
        assert (await other.lease()).body["baseUrl"] == "http://job-gateway:8000/v1"


async def test_a_lease_waits_for_an_attempt_and_ends_empty_after_its_wait(site: Site) -> None:
    assert (await site.lease()).status == 204
    waiting = asyncio.create_task(site.lease(waitSeconds=60))
    await until(lambda: len(site.environments.leases) >= 8)
    await site.environments.put(assignment())
    assert (await waiting).status == 200


async def test_a_runner_that_says_how_many_it_takes_receives_them_in_one_answer(site: Site) -> None:
    for index in range(3):
        await site.environments.put(assignment(index))
    got = (await site.lease(most=2)).body["assignments"]
    assert [one["episode"] for one in got] == ["0.0.0", "0.1.0"]
    assert [verify(KEY, one["apiKey"], 60).episode for one in got] == [attempt_of(0), attempt_of(1)]
    assert site.routes.stats.leased == 2
    assert (await site.lease(most=10**9)).body["assignments"][0]["episode"] == "0.2.0"


async def test_a_runner_leases_no_episode_of_another_environment(site: Site) -> None:
    await site.environments.put(assignment(environment="code"))
    assert (await site.lease()).status == 204
    refused = await site.lease(environment="code")
    assert (refused.status, refused.body["error"]["code"]) == (403, "other_environment")
    assert (await site.lease(mint_runner_key(RUNNERS, "code"))).status == 200


async def test_a_runner_does_not_speak_for_one_of_another_environment(site: Site) -> None:
    await site.environments.put(assignment(environment="code"))
    assert (await site.lease(mint_runner_key(RUNNERS, "code"))).status == 200
    assert (await site.done(attempt_of(), reward=1.0)).status == 410
    assert (await site.post("heartbeat", runner="r1", episodes=[named(attempt_of())])).body["stop"] != []
    assert site.environments.reports == {}
    assert (await site.done(attempt_of(), reward=1.0, key=mint_runner_key(RUNNERS, "code"))).status == 200


@pytest.mark.parametrize("route", ["lease", "heartbeat", "done"])
async def test_no_route_opens_without_the_key_of_an_environment(site: Site, route: str) -> None:
    await site.environments.put(assignment())
    capability = (await site.lease()).body["apiKey"]
    other_job = mint_runner_key(runners_key(b"another secret"), "calc")
    of_agents = mint_runner_key(KEY, "calc")
    for key in ("", "nothing", capability, other_job, of_agents):
        got = await site.post(route, key, runner="r1", episodes=[], **named(attempt_of()))
        assert (got.status, got.body["error"]["code"]) == (401, "invalid_runner_key")
    assert site.environments.heartbeats == []
    assert site.environments.done_calls == 0


async def test_a_runner_key_opens_no_turn(site: Site) -> None:
    headers = {"Authorization": f"Bearer {CALC}"}
    async with site.session.get(f"{site.url}/v1/models", headers=headers) as got:
        assert got.status == 401


def test_a_runner_key_names_its_environment_and_is_no_capability() -> None:
    assert verify_runner_key(RUNNERS, CALC) == "calc"
    with pytest.raises(KeyRefused) as caught:
        verify(KEY, CALC, 0)
    assert caught.value.refusal is Refusal.MALFORMED
    prefix, _, signature = CALC.split(".")
    other = mint_runner_key(RUNNERS, "code").split(".")[1]
    with pytest.raises(KeyRefused) as caught:
        verify_runner_key(RUNNERS, f"{prefix}.{other}.{signature}")
    assert caught.value.refusal is Refusal.FORGED


async def test_a_heartbeat_returns_what_has_ended(site: Site) -> None:
    for index in range(2):
        await site.environments.put(assignment(index))
        await site.lease()
    await site.environments.end(attempt_of(1))
    got = await site.post("heartbeat", runner="r1", episodes=[named(attempt_of(0)), named(attempt_of(1))])
    assert (got.status, got.body) == (200, {"stop": [{"episode": "0.1.0", "attempt": 1}]})
    assert site.environments.heartbeats == [("calc/r1", (attempt_of(0), attempt_of(1)))]
    assert site.routes.stats.stopped == 1


def test_a_heartbeat_of_the_most_episodes_is_read_and_more_texts_are_not() -> None:
    """It is read in the event loop, in which all heartbeats are."""
    episodes = [{"episode": f"0.{number}.0", "attempt": 1, "resumption": 2} for number in range(MOST_EPISODES)]
    assert len(parse_heartbeat(json.dumps({"runner": "r1", "episodes": episodes}).encode()).episodes) == MOST_EPISODES
    with pytest.raises(GatewayError, match=f"more than {MOST_TEXTS} texts"):
        parse_heartbeat(json.dumps({f"x{number}": 1 for number in range(MOST_TEXTS)} | {"runner": "r1"}).encode())


def test_a_stated_answer_has_a_bound() -> None:
    def body(characters: int) -> bytes:
        return json.dumps({"runner": "r1", **named(attempt_of()), "answer": "5" * characters}).encode()

    assert parse_done(body(MOST_ANSWER)).report.answer == "5" * MOST_ANSWER
    with pytest.raises(GatewayError, match="at most 65536 characters"):
        parse_done(body(MOST_ANSWER + 1))


async def test_a_report_is_passed_on_and_may_be_repeated(site: Site) -> None:
    await site.environments.put(assignment())
    await site.lease()
    report: dict[str, Any] = {"reward": 0.5, "metrics": {"calls": 2, "share": 0.25}, "detail": "two calls"}
    report |= {"limit": "turns", "answer": "42"}
    for _ in range(2):
        assert (await site.done(attempt_of(), **report)).status == 200
    assert site.environments.reports == {
        attempt_of(): EpisodeReport(0.5, {"calls": 2.0, "share": 0.25}, None, "two calls", HarnessLimit.TURNS, "42")
    }
    assert site.routes.stats.reports == 2


@pytest.mark.parametrize("part", RUNNERS_PARTS)
async def test_a_failure_of_ours_is_passed_on(site: Site, part: FailedPart) -> None:
    await site.environments.put(assignment())
    await site.lease()
    assert (await site.done(attempt_of(), failed=str(part), detail="gone")).status == 200
    assert site.environments.reports[attempt_of()] == EpisodeReport(failed=part, detail="gone")


async def test_no_runner_states_a_failure_of_the_gateway(site: Site) -> None:
    await site.environments.put(assignment())
    await site.lease()
    got = await site.done(attempt_of(), failed="gateway")
    assert (got.status, got.body["error"]["param"]) == (400, "failed")


async def refused(site: Site, episode: EpisodeAttempt) -> Memory:
    """Let the gateway refuse a request of an attempt, since others take all places."""
    memory = Memory(ByteBudget(8, 8, 8, places=1))
    site.routes.agents = AgentSide(memory, make_site().gateway.histories, ContextLimit(), Repeats())

    async def ask(one: EpisodeAttempt) -> None:
        async with memory.room(one, 1, 10.0, Sender(retry=False, has_left=lambda: False)):
            pass

    async with memory.room(attempt_of(8), 1, 1.0):
        waiting = asyncio.create_task(ask(attempt_of(9)))
        await until(lambda: memory.stats.memory_waits == 1)
        with pytest.raises(GatewayError):
            await ask(episode)
    await waiting
    return memory


async def test_the_end_of_an_attempt_that_was_refused_is_a_failure_of_ours(site: Site) -> None:
    """Its agent went on without the answer, and no reward of it says anything about the policy."""
    memory = await refused(site, attempt_of())
    for index in range(2):
        await site.environments.put(assignment(index))
        await site.lease()
    site.environments.faults["done"].append(PeerTimeout("slow"))
    assert (await site.done(attempt_of(), reward=0.0, metrics={"calls": 2})).status == 503
    assert (await site.done(attempt_of(), reward=0.0, metrics={"calls": 2})).status == 200
    assert (await site.done(attempt_of(1), reward=0.0)).status == 200
    report = site.environments.reports[attempt_of()]
    assert (report.reward, report.failed, report.metrics) == (None, FailedPart.GATEWAY, {"calls": 2.0})
    assert "no place for 1 of its requests" in report.detail
    assert site.environments.reports[attempt_of(1)] == EpisodeReport(0.0)
    assert site.routes.stats.ended_unserved == 1
    assert memory.why_unserved(attempt_of()) is None, "its end is stored"


async def test_what_a_runner_says_of_a_failure_stays(site: Site) -> None:
    await refused(site, attempt_of())
    await site.environments.put(assignment())
    await site.lease()
    assert (await site.done(attempt_of(), failed="runner", detail="it leaves")).status == 200
    assert site.environments.reports[attempt_of()] == EpisodeReport(failed=FailedPart.RUNNER, detail="it leaves")


@pytest.mark.parametrize(
    ("stated", "goes_on", "limit"),
    [
        ({}, False, HarnessLimit.TOKENS),
        ({}, True, None),
        ({"limit": "seconds"}, False, HarnessLimit.SECONDS),
        ({"failed": "environment"}, False, None),
    ],
    ids=["it ends", "a shorter request", "its own limit", "a failure"],
)
async def test_an_attempt_that_ends_with_too_long_a_request_was_ended_by_tokens(
    site: Site, stated: dict[str, str], goes_on: bool, limit: HarnessLimit | None
) -> None:
    agents = make_site()
    site.routes.agents = side_of(agents.gateway)
    await site.environments.put(assignment())
    await site.lease()
    with pytest.raises(GatewayError, match="maximum context length"):
        await agents.chat([{"role": "user", "content": "é" * SETTINGS.context}])
    if goes_on:
        await agents.chat([{"role": "user", "content": "hi"}])
    reward = {} if "failed" in stated else {"reward": 0.0}
    assert (await site.done(attempt_of(), **reward, **stated)).status == 200
    assert site.environments.reports[attempt_of()].limit == limit
    assert not agents.gateway.context_limit.has_ended(attempt_of())


async def test_no_runner_states_the_limit_of_tokens(site: Site) -> None:
    got = await site.done(attempt_of(), reward=0.0, limit="tokens")
    assert (got.status, got.body["error"]["param"]) == (400, "limit")


def test_attempts_that_end_without_a_report_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_runtime.gateway.histories.MOST_ATTEMPTS", 2)
    known = ContextLimit()
    for index in (0, 1, 0, 2):
        known.refuse(attempt_of(index))
    assert [known.has_ended(attempt_of(index)) for index in range(3)] == [True, False, True]


async def test_nothing_is_kept_of_an_attempt_that_was_reported(site: Site) -> None:
    agents = make_site()
    site.routes.agents = side_of(agents.gateway)
    await site.environments.put(assignment())
    await site.lease()
    await agents.chat([{"role": "user", "content": "hi"}])
    with agents.gateway.repeats.asked((attempt_of(), b"hi"), None, lambda: False):
        pass
    assert agents.gateway.histories.kept(attempt_of()) is not None
    assert agents.gateway.repeats.remembered == 1
    assert (await site.done(attempt_of(), reward=1.0)).status == 200
    assert agents.gateway.histories.kept(attempt_of()) is None
    assert agents.gateway.repeats.remembered == 0


async def test_the_report_of_an_attempt_that_has_ended_is_refused_for_good(site: Site) -> None:
    await site.environments.put(assignment())
    await site.lease()
    await site.environments.end(attempt_of())
    got = await site.done(attempt_of(), reward=1.0)
    assert (got.status, got.body["error"]["code"]) == (410, "attempt_ended")
    assert site.routes.stats.ended_before == 1


@pytest.mark.parametrize("fault", [PeerGone("restarts"), PeerTimeout("slow")])
async def test_requests_may_be_sent_again_while_the_coordinator_is_away(site: Site, fault: Exception) -> None:
    await site.environments.put(assignment())
    sent: list[tuple[str, dict[str, Any]]] = [
        ("lease", {"runner": "r1"}),
        ("heartbeat", {"runner": "r1", "episodes": []}),
        ("done", {"runner": "r1", **named(attempt_of())}),
    ]
    for route, body in sent:
        site.environments.faults[route].append(fault)
        got = await site.post(route, **body)
        assert (got.status, got.retry_after, got.body["error"]["code"]) == (503, "1", "coordinator_away")
        assert (await site.post(route, **body)).status == 200
    assert site.routes.stats.coordinator_away == 3


async def test_an_attempt_whose_runner_left_goes_back(site: Site) -> None:
    site.routes.access = replace(ACCESS, look_seconds=60.0)
    leaving = asyncio.create_task(site.lease(waitSeconds=60))
    await until(lambda: len(site.environments.leases) == 1)
    leaving.cancel()
    await until(lambda: not connections(site))
    await site.environments.put(assignment())
    report = await site.environments.reported(attempt_of())
    assert report.failed is FailedPart.RUNNER
    assert (site.routes.stats.handed_back, site.routes.stats.leased) == (1, 0)


async def test_a_runner_that_left_asks_for_one_short_span_more_at_most(site: Site) -> None:
    leaving = asyncio.create_task(site.lease(waitSeconds=60))
    await until(lambda: len(site.environments.leases) >= 3)
    leaving.cancel()
    await until(lambda: not connections(site))
    asked = len(site.environments.leases)
    await asyncio.sleep(10 * ACCESS.look_seconds)
    assert len(site.environments.leases) <= asked + 1


CALL = {"call": "call_2_0", "name": "add", "arguments": "{}", "observation": "5"}
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("lease", {}, "runner"),
    ("lease", {"runner": "a/b"}, "runner"),
    ("lease", {"runner": "x" * 129}, "runner"),
    ("lease", {"runner": "r1", "waitSeconds": 61}, "waitSeconds"),
    ("lease", {"runner": "r1", "waitSeconds": -1}, "waitSeconds"),
    ("lease", {"runner": "r1", "waitSeconds": "5"}, "waitSeconds"),
    ("lease", {"runner": "r1", "pods": 3}, "pods"),
    ("lease", {"runner": "r1", "most": 0}, "most"),
    ("heartbeat", {"runner": "r1"}, "episodes"),
    ("heartbeat", {"runner": "r1", "episodes": ["0.0.0"]}, "episodes[0]"),
    ("heartbeat", {"runner": "r1", "episodes": [{"episode": "0.0", "attempt": 1}]}, "episodes[0].episode"),
    ("heartbeat", {"runner": "r1", "episodes": [{"episode": "0.0.0", "attempt": 0}]}, "episodes[0].attempt"),
    (
        "heartbeat",
        {"runner": "r1", "episodes": [{"episode": "0.0.0", "attempt": 1, "turn": 1}]},
        "episodes[0].turn",
    ),
    ("done", {"runner": "r1", "episode": "0.0.0"}, "attempt"),
    ("done", {"runner": "r1", "episode": "0.0.0", "attempt": 2**63}, "attempt"),
    ("done", {"runner": "r1", "episode": "0.0. 0", "attempt": 1}, "episode"),
    ("done", {"runner": "r1", "episode": 3, "attempt": 1}, "episode"),
    ("done", {"runner": "r1", **named(attempt_of()), "reward": "1"}, "reward"),
    ("done", {"runner": "r1", **named(attempt_of()), "reward": True}, "reward"),
    ("done", {"runner": "r1", **named(attempt_of()), "reward": 10**400}, "reward"),
    ("done", {"runner": "r1", **named(attempt_of()), "metrics": {"a": "b"}}, "metrics.a"),
    ("done", {"runner": "r1", **named(attempt_of()), "metrics": {"": 1}}, "metrics"),
    ("done", {"runner": "r1", **named(attempt_of()), "metrics": {str(n): 1 for n in range(65)}}, "metrics"),
    ("done", {"runner": "r1", **named(attempt_of()), "failed": "model"}, "failed"),
    ("done", {"runner": "r1", **named(attempt_of()), "failed": "environment", "reward": 0}, "reward"),
    ("done", {"runner": "r1", **named(attempt_of()), "detail": 3}, "detail"),
    ("done", {"runner": "r1", **named(attempt_of()), "limit": "forks"}, "limit"),
    ("done", {"runner": "r1", **named(attempt_of()), "limit": ["turns"]}, "limit"),
    ("done", {"runner": "r1", **named(attempt_of()), "failed": "environment", "limit": "turns"}, "limit"),
    ("done", {"runner": "r1", **named(attempt_of()), "failed": "environment", "answer": "5"}, "answer"),
    ("done", {"runner": "r1", **named(attempt_of()), "answer": 5}, "answer"),
    ("call", {"runner": "r1", **named(attempt_of()), **CALL, "seconds": -0.1}, "seconds"),
    ("call", {"runner": "r1", **named(attempt_of()), **CALL, "seconds": "1"}, "seconds"),
]


@pytest.mark.parametrize(("route", "body", "param"), BAD, ids=[f"{route} {param}" for route, _, param in BAD])
async def test_a_bad_body_is_refused_with_its_field(site: Site, route: str, body: dict[str, Any], param: str) -> None:
    got = await site.post(route, **body)
    assert (got.status, got.body["error"]["param"]) == (400, param)
    assert site.environments.done_calls == 0


async def test_a_limit_that_no_harness_states_is_refused_with_those_that_may_be(site: Site) -> None:
    got = await site.done(attempt_of(), limit="tokens")
    assert got.body["error"]["message"] == "limit is 'tokens'; 'turns' or 'seconds' would be right"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1" + 400 * "0"])
async def test_a_reward_is_finite(site: Site, number: str) -> None:
    raw = f'{{"runner": "r1", "episode": "0.0.0", "attempt": 1, "reward": {number}}}'.encode()
    assert (await site.post("done", raw=raw)).status == 400
    assert site.environments.done_calls == 0


async def test_a_body_is_read_when_there_is_room_for_it(site: Site) -> None:
    """Bodies of runners have a budget of their own: what waits for engines delays no heartbeat."""
    memory = site.routes.memory = Memory(ByteBudget(1 << 20, 1 << 20, 8))
    async with memory.room("calc", 1 << 20, 1.0):
        asked = asyncio.create_task(site.post("heartbeat", runner="r1", episodes=[]))
        await until(lambda: memory.stats.memory_waits == 1)
        assert not site.environments.heartbeats
    assert (await asked).status == 200
    assert memory.held == 0


async def test_a_lease_that_no_runner_reads_holds_back_leases_only(site: Site) -> None:
    """No socket's buffers take it. Heartbeats and reports of other runners are answered meanwhile."""
    unread = site.routes.unread = ByteBudget(1 << 20, 1 << 20, 8)
    site.routes.access = replace(ACCESS, write_seconds=2.0)
    await site.environments.put(replace(assignment(), record={"prompt": "x" * LONG_RECORD}))
    _, writer = await asyncio.open_connection("127.0.0.1", site.server.addresses[0][1], limit=1)
    body = json.dumps({"runner": "r1", "waitSeconds": 5}).encode()
    head = f"POST /env/lease HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nAuthorization: Bearer {CALC}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    await until(lambda: unread.held > LONG_RECORD)
    await site.environments.put(assignment(1))
    assert (await site.lease(runner="r2")).status == 204
    assert (await site.post("heartbeat", runner="r2", episodes=[])).status == 200
    assert site.routes.stats.leases_held_back > 0
    await until(lambda: unread.held == 0)
    assert (await site.lease(runner="r2")).body["episode"] == str(assignment(1).episode.key)
    writer.close()


async def test_a_long_body_is_refused(site: Site) -> None:
    got = await site.post("done", runner="r1", **named(attempt_of()), detail="x" * 3_000)
    assert (got.status, "size 2000 exceeded" in got.body["error"]["message"]) == (413, True)
