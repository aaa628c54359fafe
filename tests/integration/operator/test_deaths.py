"""The operator dies at any of its calls to the API server, and another one goes on."""

from __future__ import annotations

import base64
import contextlib
import itertools

import pytest

from rljob_api.constants import RUNNERS_KEY, environments_secret_of, runner_key_item
from rljob_api.keys.runner_key import verify_runner_key
from rljob_kube.connection import Connection
from rljob_kube.resources import DEPLOYMENT, SECRET, Json
from tests.support.operator.environment_jobs import CALC
from tests.support.operator.harness import Died, Server, condition
from tests.support.operator.process_lives import FIRST, expect_first_pods, process, settle

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DEATHS = pytest.mark.parametrize(
    ("answered", "every"),
    [(True, 3), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((True, 1), (False, 1)))],
    ids=["after each third", "after each", "before each"],
)
"""When the operator dies: before or after each call, or after each third one."""


async def dies(connection: Connection, key: tuple[str, str], call: int, answered: bool) -> bool:
    """Reconcile in a process that is killed at its `call`-th request, before it is sent or after it was carried out.
    False when it came to its end before that; a request that the server refuses is none that was carried out."""

    def kill(number: int, method: str, path: str) -> None:
        if number == call:
            raise Died

    async with process(connection, key[0]) as (kube, reconcile):
        setattr(kube, "after" if answered else "before", kill)
        with contextlib.suppress(Died):
            await settle(reconcile, key, rounds=2)
        return len(kube.sent) > call


@DEATHS
async def test_the_operator_may_die_at_any_call(
    connection: Connection, server: Server, answered: bool, every: int
) -> None:
    """For each request that a creation and a replacement need: the process dies there, another goes on, and the end is
    the same: each machine once, each loss counted once, no name twice."""
    calls = 0
    for call in itertools.count(step=every):
        name = f"k{call}"
        key = (server.namespace, name)
        await server.apply_job(name)
        died = await dies(connection, key, call, answered)
        async with process(connection, server.namespace) as (_, reconcile):
            await settle(reconcile, key)
        await expect_first_pods(server, name)
        await server.start_all(name)
        async with process(connection, server.namespace) as (_, reconcile):
            await settle(reconcile, key)
        await server.fail_pod(f"{name}-trainer-0-1")
        died_again = await dies(connection, key, call, answered)
        async with process(connection, server.namespace) as (_, reconcile):
            await settle(reconcile, key)
        await _expect_one_replacement(server, name)
        calls = call
        if not died and not died_again:
            break
    assert calls > 15, "the faults hit too few calls to mean anything"


async def _expect_one_replacement(server: Server, name: str) -> None:
    pods = await server.pods(name)
    live = {pod for pod, item in pods.items() if item["status"]["phase"] != "Failed"}
    wanted = {pod.replace("j-", f"{name}-", 1) for pod in FIRST} - {f"{name}-trainer-0-1"} | {f"{name}-trainer-0-2"}
    assert live == wanted
    status = (await server.job(name))["status"]
    assert status["replacements"]["total"] == 1
    assert status["replacements"]["byMachine"] == {"trainer-0": 1}
    assert {m["machine"]: m["incarnation"] for m in status["members"]}["trainer-0"] == 2


@DEATHS
async def test_the_operator_may_die_at_any_call_of_scaling_suspension_and_end(
    connection: Connection, server: Server, answered: bool, every: int
) -> None:
    for call in itertools.count(step=every):
        name = f"s{call}"
        key = (server.namespace, name)
        await server.apply_job(name)
        async with process(connection, server.namespace) as (_, reconcile):
            await settle(reconcile, key, rounds=2)
        died = False
        for step in (_scale_down, _suspend, _resume, _finish):
            await step(server, name)
            died |= await dies(connection, key, call, answered)
            async with process(connection, server.namespace) as (_, reconcile):
                await settle(reconcile, key)
            await _answer(server, name)
            async with process(connection, server.namespace) as (_, reconcile):
                await settle(reconcile, key)
            await server.start_all(name)
        job = await server.job(name)
        assert condition(job, "Complete") == "True/RoundsFinished"
        assert await server.pods(name) == {}
        assert job["status"]["replacements"]["total"] == 0
        assert job["status"]["incarnations"]["rollout-0"] == 2
        if not died:
            break


@pytest.mark.slow
@DEATHS
async def test_the_operator_may_die_at_any_call_of_a_job_with_environments(
    connection: Connection, server: Server, answered: bool, every: int
) -> None:
    """For each request: the number of runners is right at the end of each step, and each key is made once."""
    for call in itertools.count(step=every):
        name = f"e{call}"
        key = (server.namespace, name)
        died = False
        for suspend, runners in ((False, 2), (True, 0), (False, 2), (None, 0)):
            if suspend is None:
                await _finish(server, name)
            else:
                await server.apply_job(name, environments=[CALC], suspend=suspend)
            died |= await dies(connection, key, call, answered)
            async with process(connection, server.namespace) as (_, reconcile):
                await settle(reconcile, key)
            await _answer(server, name)
            async with process(connection, server.namespace) as (_, reconcile):
                await settle(reconcile, key)
            await server.start_all(name)
            deployment = await server.kube.get(DEPLOYMENT, server.namespace, f"{name}-environment-calc")
            assert deployment["spec"]["replicas"] == runners
        job = await server.job(name)
        assert condition(job, "Complete") == "True/RoundsFinished"
        assert job["status"]["environments"] == [{"name": "calc", "runners": 0, "ready": 0}]
        await _expect_one_set_of_keys(server, job)
        if not died:
            break


async def _expect_one_set_of_keys(server: Server, job: Json) -> None:
    """The runners' key fits the gateway's: both are of one creation."""
    name = environments_secret_of(job["metadata"]["name"], job["metadata"]["uid"])
    secret = await server.kube.get(SECRET, server.namespace, name)
    keys = {item: base64.b64decode(value).decode() for item, value in secret["data"].items()}
    assert verify_runner_key(bytes.fromhex(keys[RUNNERS_KEY]), keys[runner_key_item("calc")]) == "calc"


async def _scale_down(server: Server, name: str) -> None:
    await server.start_all(name)
    await server.apply_job(name, rollout={"machines": 1})


async def _suspend(server: Server, name: str) -> None:
    await server.apply_job(name, rollout={"machines": 1}, suspend=True)


async def _resume(server: Server, name: str) -> None:
    await server.apply_job(name, rollout={"machines": 1}, suspend=False)


async def _finish(server: Server, name: str) -> None:
    await server.report(name, event=99, finished={"outcome": "Complete"})


async def _answer(server: Server, name: str) -> None:
    """The coordinator acknowledges whatever the target says now."""
    status = (await server.job(name)).get("status") or {}
    finished = (status.get("runtime") or {}).get("finished")
    if status.get("target") and not finished:
        revision = status["target"]["revision"]
        stage = "Suspended" if status["target"]["phase"] == "Suspend" else "Generating"
        await server.report(name, event=revision, applied=revision, drained=["rollout-1"], stage=stage)
