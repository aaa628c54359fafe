"""A runner leases, lives and reports, whatever happens between: each leased attempt has one end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from rljob_env.episode import Limit, Report
from rljob_env.failures import Failed, GatewayAway, GatewayRefused, Part
from rljob_env.gateway_client import GatewayClient
from rljob_env.runner import Runner, RunnerSettings
from rljob_runtime.protocols.environments import FailedPart, HarnessLimit
from rljob_runtime.protocols.errors import PeerGone, PeerTimeout
from tests.support.envs.processes import gone
from tests.support.envs.site import RUNNER_KEY, SETTINGS, Site, open_site
from tests.support.envs.stand_in_harness import StandInHarness
from tests.support.gateway.stand_in_coordinator import attempt_of
from tests.support.paths import ROOT
from tests.support.waiting import until


async def put_and_start(site: Site, harness: StandInHarness, count: int = 1) -> None:
    for index in range(count):
        await site.put(index)
    await until(lambda: len(harness.running) == count)


async def test_a_runner_runs_so_many_episodes_at_a_time() -> None:
    harness = StandInHarness()
    async with open_site() as site, site.stack:
        runner = await site.run(harness)
        for index in range(10):
            await site.put(index)
        await until(lambda: len(harness.running) == SETTINGS.episodes)
        heartbeats = len(site.environments.heartbeats)
        await until(lambda: len(site.environments.heartbeats) > heartbeats + 1)
        assert len(site.environments.leased) == SETTINGS.episodes
        harness.go.set()
        for index in range(10):
            assert (await site.environments.reported(attempt_of(index))).reward == 1.0
        assert harness.most == SETTINGS.episodes
        await until(lambda: runner.stats.reported == 10)
        assert runner.stats.leased == 10
    assert harness.closed


async def test_a_runner_takes_all_that_waits_in_one_lease() -> None:
    harness = StandInHarness()
    async with open_site() as site, site.stack:
        for index in range(3):
            await site.put(index)
        runner = await site.run(harness)
        await until(lambda: len(harness.running) == 3)
        assert (runner.stats.leases, runner.stats.leased) == (1, 3)
        await site.put(3)
        await until(lambda: len(harness.running) == 4)
        assert (runner.stats.leases, runner.stats.leased) == (2, 4)
        harness.go.set()


async def test_heartbeats_name_the_open_attempts_while_a_harness_works() -> None:
    harness = StandInHarness()
    async with open_site() as site, site.stack:
        await site.run(harness)
        await until(lambda: len(site.environments.heartbeats) > 0)
        await put_and_start(site, harness)
        await until(lambda: ("calc/r1", (attempt_of(),)) in site.environments.heartbeats)
        harness.go.set()
        await site.environments.reported(attempt_of())
        await until(lambda: site.environments.heartbeats[-1] == ("calc/r1", ()))


async def test_an_attempt_that_a_heartbeat_stops_is_ended_and_not_reported() -> None:
    harness = StandInHarness()
    async with open_site() as site, site.stack:
        runner = await site.run(harness)
        await put_and_start(site, harness, 2)
        await site.environments.end(attempt_of(0))
        await until(lambda: runner.stats.stopped == 1)
        assert (harness.cancelled, harness.running) == ({"0.0.0"}, {"0.1.0"})
        harness.go.set()
        await site.environments.reported(attempt_of(1))
        assert site.environments.done_calls == 1


@pytest.mark.parametrize(
    "report",
    [
        Report(1.0, {f"m{number}": 1.0 for number in range(100)}),
        Report(1.0, {"half of a character \ud83d": 1.0}),
        Report(failed=Part.TOOL_SERVER, detail="half of a character \ud83d"),
    ],
)
async def test_a_report_that_cannot_be_delivered_is_a_failure_and_does_not_lapse(report: Report) -> None:
    """A harness may state anything. The next attempt begins now, and the coordinator knows why."""
    harness = StandInHarness(report)
    async with open_site() as site, site.stack:
        runner = await site.run(harness)
        await put_and_start(site, harness)
        harness.go.set()
        reported = await site.environments.reported(attempt_of())
        assert (reported.reward, reported.failed) == (None, FailedPart.ENVIRONMENT)
        assert "the report of its harness is refused" in reported.detail
        await until(lambda: runner.stats.reported == 1)
        assert (runner.stats.refused, runner.stats.not_reported) == (1, 0)


async def test_an_unforeseen_error_costs_its_attempt_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness, done = StandInHarness(), GatewayClient.done

    async def fails_once(client: GatewayClient, attempt: Any, report: Report) -> None:
        monkeypatch.setattr(GatewayClient, "done", done)
        raise httpx.DecodingError("the answer is no gzip")

    async with open_site() as site, site.stack:
        runner = await site.run(harness)
        await put_and_start(site, harness)
        monkeypatch.setattr(GatewayClient, "done", fails_once)
        harness.go.set()
        await until(lambda: runner.stats.not_reported == 1)
        assert "the answer is no gzip" in caplog.text
        await until(lambda: site.environments.heartbeats[-1][1] == ())
        await site.put(1)
        assert (await site.environments.reported(attempt_of(1))).reward == 1.0


@pytest.mark.parametrize(
    ("away", "gave_up", "failed"),
    [(True, True, FailedPart.ENVIRONMENT), (False, True, None), (True, False, None)],
)
async def test_an_agent_that_gave_up_while_the_gateway_was_away_is_no_zero(
    away: bool, gave_up: bool, failed: Any
) -> None:
    """Its client tries a few times, and the program ends with an error. The policy had no turn."""
    harness = StandInHarness(Report(detail="the agent ended with 1", gave_up=gave_up))
    async with open_site() as site, site.stack:
        runner = await site.run(harness, RunnerSettings(1, heartbeat_seconds=60.0))
        await until(lambda: len(site.environments.heartbeats) == 1)
        await put_and_start(site, harness)
        site.environments.faults["heartbeat"] += [PeerGone("restarts")] if away else []
        harness.go.set()
        reported = await site.environments.reported(attempt_of())
        assert reported.failed == failed
        assert "the agent ended with 1" in reported.detail
        assert runner.stats.heartbeats_missed == (away and gave_up)


OUT_OF_TIME = Report(0.0, limit=Limit.SECONDS)


@pytest.mark.parametrize(
    ("report", "seconds", "away", "failed"),
    [
        (OUT_OF_TIME, 60.0, True, FailedPart.ENVIRONMENT),
        (OUT_OF_TIME, 60.0, False, None),
        (Report(0.0), 0.5, True, FailedPart.ENVIRONMENT),
        (Report(0.0), 0.5, False, None),
        (Report(0.0), 60.0, True, None),
        (Report(0.0, limit=Limit.TURNS), 60.0, True, None),
    ],
    ids=["out of time", "no outage", "a turn may be refused", "its own end", "it has time left", "all turns"],
)
async def test_time_in_which_the_gateway_was_away_is_no_zero(
    report: Report, seconds: float, away: bool, failed: FailedPart | None
) -> None:
    """It answers again long before the end: the harness only had less time."""
    harness = StandInHarness(report)
    async with open_site() as site, site.stack:
        runner = await site.run(harness)
        episode = await site.put(seconds=seconds)
        await until(lambda: len(harness.running) == 1)
        site.environments.faults["heartbeat"] += [PeerGone("restarts")] if away else []
        await until(lambda: runner.stats.heartbeats_missed == away)
        heartbeats = len(site.environments.heartbeats)
        await until(lambda: len(site.environments.heartbeats) > heartbeats + 1)
        harness.go.set()
        reported = await site.environments.reported(episode)
        assert (reported.reward, reported.failed) == (None if failed else 0.0, failed)
        assert ("the gateway was away in the episode's time" in reported.detail) == (failed is not None)


async def test_an_outage_explains_no_other_failure() -> None:
    harness = StandInHarness(error=Failed(Part.TOOL_SERVER, "no index"))
    async with open_site() as site, site.stack:
        runner = await site.run(harness)
        episode = await site.put(seconds=0.5)
        await until(lambda: len(harness.running) == 1)
        site.environments.faults["heartbeat"].append(PeerGone("restarts"))
        await until(lambda: runner.stats.heartbeats_missed == 1)
        harness.go.set()
        reported = await site.environments.reported(episode)
        assert (reported.failed, reported.detail) == (FailedPart.TOOL_SERVER, "no index")


async def test_an_attempt_is_reported_when_the_coordinator_is_back() -> None:
    harness = StandInHarness()
    async with open_site() as site, site.stack:
        runner = await site.run(harness, RunnerSettings(1, heartbeat_seconds=30.0))
        site.environments.faults["lease"] += [PeerGone("restarts"), PeerTimeout("slow")]
        await put_and_start(site, harness)
        site.environments.faults["done"] += [PeerGone("restarts"), PeerTimeout("slow")]
        harness.go.set()
        assert (await site.environments.reported(attempt_of())).reward == 1.0
        await until(lambda: runner.stats.reported == 1)
        assert site.routes.stats.coordinator_away == 4


class LosesAnswers(httpx.AsyncBaseTransport):
    """A transport that loses the first answer to a report."""

    def __init__(self) -> None:
        self.lost = 0
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if request.url.path == "/env/done" and not self.lost:
            self.lost += 1
            await response.aread()
            raise httpx.ReadError("the answer is lost")
        return response


async def test_a_report_whose_answer_was_lost_is_sent_again_and_counts_once() -> None:
    harness = StandInHarness()
    async with httpx.AsyncClient(transport=LosesAnswers()) as http, open_site() as site, site.stack:
        runner = await site.run(harness, http=http)
        await put_and_start(site, harness)
        harness.go.set()
        await until(lambda: runner.stats.reported == 1)
        assert site.environments.done_calls == 2
        assert site.environments.reports.keys() == {attempt_of()}


class Older(httpx.AsyncBaseTransport):
    """A gateway of a version before: it refuses what it does not know."""

    def __init__(self, *unknown: str) -> None:
        self.refused: list[str] = []
        self._unknown = unknown
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for name in self._unknown:
            if f'"{name}"'.encode() in request.content:
                self.refused.append(name)
                error = {"code": "unknown_parameter", "message": f"unknown parameter '{name}'"}
                return httpx.Response(400, json={"error": error}, request=request)
        return await self._inner.handle_async_request(request)


@pytest.mark.parametrize(
    ("unknown", "stated", "limit"),
    [
        (("limit",), None, None),
        (("answer",), "5", HarnessLimit.TURNS),
        (("limit", "answer"), "5", None),
    ],
)
async def test_an_older_gateway_gets_a_report_of_what_it_knows(
    unknown: tuple[str, ...], stated: str | None, limit: HarnessLimit | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It lives as long as its coordinator's pod. The end is worth more than what ended it."""
    harness = StandInHarness(Report(0.5, limit=Limit.TURNS, answer=stated))
    harness.go.set()
    gateway = Older(*unknown)
    async with httpx.AsyncClient(transport=gateway) as http, open_site() as site, site.stack:
        await site.run(harness, http=http)
        report = await site.environments.reported(await site.put())
        assert (report.reward, report.failed, report.limit, report.answer) == (0.5, None, limit, None)
    assert len(gateway.refused) == len(unknown)
    assert ("the stated answer is not scored" in caplog.text) == (stated is not None)


async def test_an_unforeseen_error_of_a_harness_is_a_failure_of_ours() -> None:
    harness = StandInHarness(error=ZeroDivisionError("a mistake in a harness"))
    harness.go.set()
    async with open_site() as site, site.stack:
        report = await site.report_of(harness)
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert "a mistake in a harness" in report.detail


async def test_a_harness_that_does_not_end_at_its_deadline_is_cancelled() -> None:
    harness = StandInHarness()
    async with open_site() as site, site.stack:
        await site.run(harness, RunnerSettings(1, overrun_seconds=0.2))
        report = await site.environments.reported(await site.put(seconds=0.3))
        assert report.failed is FailedPart.ENVIRONMENT
        assert harness.cancelled == {"0.0.0"}


async def test_a_runner_that_ends_reports_its_attempts_for_others() -> None:
    harness = StandInHarness()
    async with open_site() as site:
        async with site.stack:
            runner = await site.run(harness)
            await put_and_start(site, harness, 3)
        assert harness.cancelled == {"0.0.0", "0.1.0", "0.2.0"}
        reports = site.environments.reports
        assert [report.failed for report in reports.values()] == [FailedPart.RUNNER] * 3
        assert reports[attempt_of()].detail == "it was told to end"
        assert (runner.stats.handed_back, runner.stats.failed) == (3, 0)


async def test_a_runner_ends_within_its_grace_although_the_coordinator_is_away() -> None:
    harness = StandInHarness()
    async with open_site() as site:
        async with site.stack:
            runner = await site.run(harness, RunnerSettings(2, heartbeat_seconds=30.0, grace_seconds=0.5))
            await put_and_start(site, harness)
            site.environments.faults["done"] += [PeerGone("away")] * 1000
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 20
        assert (harness.cancelled, runner.stats.reported) == ({"0.0.0"}, 0)


async def test_a_gateway_that_stays_away_ends_the_runner() -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        client = GatewayClient(http, "http://127.0.0.1:9", RUNNER_KEY, "r1", 1.0, patience_seconds=0.6)
        with pytest.raises(GatewayAway, match="did not answer for"):
            await Runner(client, StandInHarness(), SETTINGS).run(asyncio.Event())
        assert client.stats.sent_again >= 1


async def test_a_key_that_opens_nothing_ends_the_runner_immediately() -> None:
    async with open_site() as site:
        client = GatewayClient(site.http, site.url, "rlr1.Y2FsYw.AAAA", "r1", 1.0, 300.0)
        with pytest.raises(GatewayRefused, match="not made for this job"):
            await Runner(client, StandInHarness(), SETTINGS).run(asyncio.Event())
        assert client.stats.sent_again == 0


PROGRAM = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open("pids", "w") as file:
    json.dump([os.getpid(), child.pid], file)
os.rename("pids", "started")
time.sleep(600)
"""


async def runner_process(site: Site, folder: Path) -> tuple[asyncio.subprocess.Process, list[int]]:
    """Start a runner with an episode; return it with the processes of its agent."""
    (folder / "key").write_text(RUNNER_KEY)
    (folder / "agent.py").write_text(PROGRAM)
    config = {
        "url": "http://127.0.0.1:9",
        "keyFile": "key",
        "heartbeatSeconds": 0.2,
        "environment": {"name": "calc", "kind": "Agent", "command": [sys.executable, "agent.py"], "tools": None},
    }
    (folder / "config.json").write_text(json.dumps(config))
    path = os.pathsep.join((str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")))
    variables = {**os.environ, "PYTHONPATH": path, "RLJOB_ENV_URL": site.url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rljob_env", str(folder / "config.json"), env=variables, start_new_session=True
    )
    await site.put()
    await until((folder / "started").exists)
    return process, json.loads((folder / "started").read_text())


async def test_the_process_ends_at_sigterm_with_reports_and_without_its_agents(tmp_path: Path) -> None:
    async with open_site() as site:
        process, agents = await runner_process(site, tmp_path)
        process.send_signal(signal.SIGTERM)
        report = await site.environments.reported(attempt_of())
        assert (report.failed, report.detail) == (FailedPart.RUNNER, "it was told to end")
        assert await process.wait() == 0
        await gone(agents)


async def test_agents_end_with_a_runner_that_is_killed(tmp_path: Path) -> None:
    async with open_site() as site:
        process, agents = await runner_process(site, tmp_path)
        os.killpg(process.pid, signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        await gone(agents)
