"""With `reset: Pod` a runner runs one episode and ends, and no other one is run in its pod."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from rljob_api import constants as c
from rljob_env.one_episode import USED, MarkingHarness, PodMark
from rljob_env.runner import RunnerSettings
from rljob_runtime.protocols.environments import FailedPart
from tests.support.envs.site import LEASE_SECONDS, RUNNER_KEY, Site, open_site
from tests.support.envs.stand_in_harness import StandInHarness
from tests.support.gateway.stand_in_coordinator import attempt_of
from tests.support.paths import ROOT
from tests.support.waiting import until

ONCE = RunnerSettings(1, heartbeat_seconds=0.05, once=True)


def test_runner_and_operator_mean_the_same_exit_code() -> None:
    assert USED == c.RUNNER_POD_USED


async def test_a_runner_runs_one_episode_and_ends() -> None:
    harness = StandInHarness()
    harness.go.set()
    async with open_site() as site, site.stack:
        await site.put(0)
        await site.put(1)
        runner = await site.run(harness, ONCE)
        assert (await site.environments.reported(attempt_of(0))).reward == 1.0
        await until(lambda: harness.closed)
        assert (runner.stats.leased, runner.stats.reported, len(site.environments.waiting)) == (1, 1, 1)


async def test_a_runner_that_finds_no_episode_goes_on_asking() -> None:
    harness = StandInHarness()
    harness.go.set()
    async with open_site() as site, site.stack:
        await site.run(harness, ONCE)
        await until(lambda: len(site.environments.leases) > 2)
        await site.put(0)
        assert (await site.environments.reported(attempt_of(0))).reward == 1.0


async def test_a_pod_is_marked_before_its_episode_begins(tmp_path: Path) -> None:
    mark, inner = PodMark(tmp_path, "calc-1"), StandInHarness()
    harness = MarkingHarness(inner, mark)
    async with open_site() as site, site.stack:
        await site.run(harness, ONCE)
        await until(lambda: bool(site.environments.leases))
        assert not mark.is_set
        await site.put()
        await until(lambda: bool(inner.running))
        assert mark.is_set
        assert PodMark(tmp_path, "calc-1").is_set
        assert not PodMark(tmp_path, "calc-2").is_set, "the folder may be a volume of several pods"
        inner.go.set()
        await site.environments.reported(attempt_of())


async def test_no_episode_begins_where_the_mark_cannot_be_made(tmp_path: Path) -> None:
    inner = StandInHarness()
    async with open_site() as site, site.stack:
        await site.run(MarkingHarness(inner, PodMark(tmp_path / "absent", "calc-1")), ONCE)
        await site.put()
        report = await site.environments.reported(attempt_of())
        assert (report.failed, inner.most) == (FailedPart.ENVIRONMENT, 0)


async def started(site: Site, folder: Path, reset: str, does: str = "pass") -> asyncio.subprocess.Process:
    """Start a runner as a pod's container does: what is in the folder `pod` stays for the next one.

    `does`: what its agent does beside its work.
    """
    (folder / "key").write_text(RUNNER_KEY)
    (folder / "pod").mkdir(exist_ok=True)
    agent = [sys.executable, "-c", f"import json, os; json.dump(0.5, open(os.environ['RLJOB_RESULT'], 'w')); {does}"]
    environment = {"name": "calc", "kind": "Agent", "command": agent, "reset": reset, "episodesPerRunner": 1}
    config = {"url": site.url, "keyFile": "key", "waitSeconds": LEASE_SECONDS, "environment": environment}
    config |= {"podFolder": "pod"} if reset == "Pod" else {}
    (folder / "config.json").write_text(json.dumps(config))
    path = os.pathsep.join((str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")))
    variables = {**os.environ, "PYTHONPATH": path}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rljob_env", str(folder / "config.json"), env=variables
    )


async def test_the_process_says_by_its_end_that_the_pod_is_used(tmp_path: Path) -> None:
    async with open_site() as site:
        await site.put(0)
        await site.put(1)
        assert await (await started(site, tmp_path, "Pod")).wait() == USED
        assert site.environments.reports.keys() == {attempt_of(0)}
        leases = len(site.environments.leases)
        assert await (await started(site, tmp_path, "Pod")).wait() == USED, "the kubelet starts its container again"
        assert len(site.environments.leases) == leases
        assert len(site.environments.waiting) == 1


async def test_an_agent_that_removes_the_mark_leaves_a_used_pod(tmp_path: Path) -> None:
    removes = f"os.system('rm -rf {tmp_path / 'pod'}/*')"
    async with open_site() as site:
        await site.put(0)
        assert await (await started(site, tmp_path, "Pod", removes)).wait() == USED


@pytest.mark.parametrize("reset", ["Process", "Pod"])
async def test_a_runner_without_an_episode_leaves_an_unused_pod(tmp_path: Path, reset: str) -> None:
    async with open_site() as site:
        process = await started(site, tmp_path, reset)
        await until(lambda: bool(site.environments.leases))
        process.terminate()
        assert await process.wait() == 0
        assert not list((tmp_path / "pod").iterdir())
