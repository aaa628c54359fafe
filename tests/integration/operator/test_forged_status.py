"""What a coordinator's token may write, and what the operator makes of it: the real Role on a real API server."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from rljob_api.constants import GROUP
from rljob_kube.connection import Connection
from rljob_kube.errors import ApiError
from rljob_kube.resources import RLJOB, ROLE, Json
from rljob_operator.policies.status.seal import ANNOTATION, operator_part
from tests.support.operator.harness import APPLY, FaultyKube, Server, admin, condition, patch, until
from tests.support.operator.process_lives import process, settle, show_pods

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MERGE = "application/merge-patch+json"
EVIL_TEMPLATE: Json = {
    "spec": {
        "serviceAccountName": "other-account",
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        "containers": [{"name": "main", "image": "evil/image", "securityContext": {"privileged": True}}],
    }
}


async def _token(server: Server, job: str) -> str:
    """The token that the kubelet mounts into the coordinator's pod."""
    path = f"/api/v1/namespaces/{server.namespace}/serviceaccounts/{job}-coordinator/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = await server.kube._send(
        "POST", path, json.dumps(request).encode(), {}, {"Content-Type": "application/json"}
    )
    return str(answer["status"]["token"])


async def _as_coordinator(connection: Connection, server: Server, job: str) -> Connection:
    """A connection with this token, once the authorizer knows its Role."""
    found = replace(connection, token=await _token(server, job))

    async def may() -> bool:
        async with admin(found) as kube:
            try:
                await kube.get(RLJOB, server.namespace, job)
            except ApiError as error:
                if error.status != 403:
                    raise
                return False
        return True

    await until(may)
    return found


async def _forge(connection: Connection, server: Server, job: str, status: Json) -> Json:
    """One request of the coordinator's."""
    async with admin(await _as_coordinator(connection, server, job)) as kube:
        return await patch(kube, RLJOB.path(server.namespace, job, "status"), {"status": status}, MERGE)


async def _begin(connection: Connection, server: Server, job: str) -> Json:
    """A job whose pods are all ready; its operator's part."""
    await server.apply_job(job)
    async with process(connection, server.namespace) as (_, reconcile):
        await settle(reconcile, (server.namespace, job))
        await server.start_all(job)
        await show_pods(server, reconcile, job)
        await server.report(job, event=1, round=1)
        await settle(reconcile, (server.namespace, job))
    return operator_part(await server.job(job))


def _evil_spec(part: Json) -> Json:
    """Another spec than the accepted one: also in a field that never changes, so that the user's own is refused."""
    spec = json.loads(part["accepted"]["spec"])
    spec["data"]["seed"] = 4711
    spec["rollout"]["template"] = EVIL_TEMPLATE
    return {"accepted": {"spec": json.dumps(spec)}}


FORGERIES: dict[str, Any] = {
    "accepted": _evil_spec,
    "incarnations": lambda part: {"incarnations": {"rollout-0": 77777, "evil-0": 1}},
    "members": lambda part: {"members": []},
    "target": lambda part: {"target": {"machines": [f"rollout-{n}" for n in range(40)], "revision": 99}},
    "replacements": lambda part: {
        "replacements": {"byMachine": {"coordinator-0": 999}, "avoidedNodes": [_avoided("n1")], "total": 999}
    },
    "conditions": lambda part: {"conditions": [_failed(), *part["conditions"]]},
    "relay": lambda part: {"relay": {"epoch": 999999, "chain": ["rollout-1"]}},
    "elasticity": lambda part: {"elasticity": {"machines": 9, "start": 2}},
    "times": lambda part: {"activeSince": "2001-01-01T00:00:00Z", "startTime": "2001-01-01T00:00:00Z"},
    "everything": lambda part: dict.fromkeys(part),
}


def _avoided(node: str) -> Json:
    return {"name": node, "until": "2099-01-01T00:00:00Z", "reason": "x"}


def _failed() -> Json:
    return {"type": "Evil", "status": "True", "reason": "Because"}


@pytest.mark.parametrize("forged", FORGERIES)
async def test_the_operator_that_wrote_a_status_puts_it_back(
    connection: Connection, server: Server, forged: str
) -> None:
    await server.apply_job("j")
    key = (server.namespace, "j")
    async with process(connection, server.namespace) as (_, reconcile):
        await settle(reconcile, key)
        await server.start_all("j")
        await show_pods(server, reconcile, "j")
        await settle(reconcile, key)
        before = operator_part(await server.job("j"))
        written = await _forge(connection, server, "j", FORGERIES[forged](before))
        assert operator_part(written) != before, "the API server let it through"
        await server.report("j", event=1, round=1)
        await settle(reconcile, key)
        found = await server.job("j")
        after = operator_part(found)
    assert _without_conditions(after) == _without_conditions(before)
    assert condition(found, "Degraded") == "True/StatusForged"
    assert condition(found, "Evil") is None
    assert condition(found, "Ready") == condition({"status": before}, "Ready")
    assert found["status"]["runtime"]["round"] == 1, "the coordinator's own report stays"
    assert (await server.events("j"))["StatusForged"] == 1
    assert len(await server.pods("j")) == 4


def _without_conditions(part: Json) -> Json:
    return {key: value for key, value in part.items() if key != "conditions"}


@pytest.mark.parametrize("forged", FORGERIES)
async def test_what_was_forged_while_no_operator_was_there_is_ignored(
    connection: Connection, server: Server, forged: str
) -> None:
    """The next one knows only that no operator wrote it. The job goes on with its pods, by its own spec."""
    before = await _begin(connection, server, "j")
    pods = {name: pod["metadata"]["uid"] for name, pod in (await server.pods("j")).items()}
    await _forge(connection, server, "j", FORGERIES[forged](before))
    async with process(connection, server.namespace) as (_, reconcile):
        await settle(reconcile, (server.namespace, "j"))
        found = await server.job("j")
        assert {name: pod["metadata"]["uid"] for name, pod in (await server.pods("j")).items()} == pods
        after = found["status"]
        for field in ("accepted", "members", "incarnations"):
            assert after[field] == before[field]
        assert after["target"]["machines"] == before["target"]["machines"]
        assert after["replacements"].get("total", 0) == 0
        assert "elasticity" not in after
        assert condition(found, "Degraded") == "True/StatusForged"
        assert condition(found, "Evil") is None
        assert (await server.events("j"))["StatusForged"] == 1


async def test_no_pod_is_made_from_a_spec_that_the_coordinator_wrote(connection: Connection, server: Server) -> None:
    for name, same in (("same", True), ("next", False)):
        before = await _begin(connection, server, name)
        async with process(connection, server.namespace) as (_, first):
            await settle(first, (server.namespace, name))
            await _forge(connection, server, name, _evil_spec(before))
            await server.fail_pod(f"{name}-rollout-0-1")
            if same:
                await show_pods(server, first, name)
                await settle(first, (server.namespace, name))
        if not same:
            async with process(connection, server.namespace) as (_, second):
                await settle(second, (server.namespace, name))
        pods = await server.pods(name)
        spec = pods[f"{name}-rollout-0-2"]["spec"]
        old = pods[f"{name}-rollout-1-1"]["spec"]
        assert [c["image"] for c in spec["containers"]] == [c["image"] for c in old["containers"]]
        assert not any("hostPath" in volume for volume in spec["volumes"])
        assert spec["serviceAccountName"] == old["serviceAccountName"]
        assert spec["containers"][0]["securityContext"] == old["containers"][0]["securityContext"]


async def test_a_report_is_no_forgery(connection: Connection, server: Server) -> None:
    before = await _begin(connection, server, "j")
    body = {"apiVersion": RLJOB.api_version, "kind": "RLJob", "metadata": {"name": "j"}}
    body |= {"status": {"runtime": {"round": 2, "event": 3, "stage": "Generating"}}}
    async with admin(await _as_coordinator(connection, server, "j")) as kube:
        await patch(kube, RLJOB.path(server.namespace, "j", "status"), body, APPLY, manager="rljob-coordinator")
    async with process(connection, server.namespace) as (_, reconcile):
        await settle(reconcile, (server.namespace, "j"))
    assert operator_part(await server.job("j")) == before
    assert "StatusForged" not in await server.events("j")


async def test_the_coordinator_can_write_only_the_status(connection: Connection, server: Server) -> None:
    await _begin(connection, server, "j")
    role = ROLE.path(server.namespace, "j-coordinator")
    async with admin(await _as_coordinator(connection, server, "j")) as kube:
        for path, body in (
            (role, {"metadata": {"annotations": {ANNOTATION: "0"}}}),
            (RLJOB.path(server.namespace, "j"), {"metadata": {"annotations": {"a": "b"}}}),
            (RLJOB.path(server.namespace, "j"), {"spec": {"rounds": 9}}),
        ):
            with pytest.raises(ApiError) as refused:
                await patch(kube, path, body, MERGE)
            assert refused.value.status == 403
        with pytest.raises(ApiError) as refused:
            await kube.delete(ROLE, server.namespace, "j-coordinator")
        assert refused.value.status == 403
        # The status may be written, and through it nothing else.
        body = {"metadata": {"annotations": {f"{GROUP}/x": "y"}, "labels": {"a": "b"}}, "spec": {"rounds": 9}}
        after = await patch(kube, RLJOB.path(server.namespace, "j", "status"), body, MERGE)
    assert after["spec"]["rounds"] == 3
    assert not after["metadata"].get("labels")
    assert f"{GROUP}/x" not in (after["metadata"].get("annotations") or {})


async def test_a_job_of_an_operator_without_seals_continues_and_is_sealed(
    connection: Connection, server: Server
) -> None:
    before = await _begin(connection, server, "j")
    await _unsealed(server, "j")
    pods = set(await server.pods("j"))
    async with process(connection, server.namespace) as (_, reconcile):
        await settle(reconcile, (server.namespace, "j"))
    assert operator_part(await server.job("j")) == before
    assert set(await server.pods("j")) == pods
    assert "StatusForged" not in await server.events("j")
    await _forge(connection, server, "j", _evil_spec(before))
    async with process(connection, server.namespace) as (_, reconcile):
        await settle(reconcile, (server.namespace, "j"))
    assert (await server.events("j"))["StatusForged"] == 1


async def _unsealed(server: Server, job: str) -> None:
    """As an older operator made the Role."""
    role = await server.kube.merge(
        ROLE, server.namespace, f"{job}-coordinator", {"metadata": {"annotations": {ANNOTATION: None}}}
    )
    assert ANNOTATION not in (role["metadata"].get("annotations") or {})


async def test_a_repaired_role_keeps_its_seal(connection: Connection, server: Server) -> None:
    """A newer operator gives coordinators other rights."""
    await _begin(connection, server, "j")
    role = await server.kube.get(ROLE, server.namespace, "j-coordinator")
    rules = role["rules"][:1]
    await server.kube.merge(ROLE, server.namespace, "j-coordinator", {"rules": rules})
    async with process(connection, server.namespace) as (kube, reconcile):
        observer: Any = reconcile._observer
        observer._created[(await server.job("j"))["metadata"]["uid"]] = -1e9
        await settle(reconcile, (server.namespace, "j"))
        assert ("PATCH", ROLE.path(server.namespace, "j-coordinator")) in kube.sent
    repaired = await server.kube.get(ROLE, server.namespace, "j-coordinator")
    assert repaired["rules"] == role["rules"]
    assert repaired["metadata"]["annotations"] == role["metadata"]["annotations"]


async def test_a_job_in_which_nothing_changes_costs_no_request_more(connection: Connection, server: Server) -> None:
    await _begin(connection, server, "j")
    async with process(connection, server.namespace) as (kube, reconcile):
        await settle(reconcile, (server.namespace, "j"), rounds=1)
        assert _roles(kube) == ["GET"], "the first look of a process"
        kube.sent.clear()
        await settle(reconcile, (server.namespace, "j"), rounds=3)
        assert _roles(kube) == []
        assert {method for method, _ in kube.sent} == {"GET"}


def _roles(kube: FaultyKube) -> list[str]:
    return [method for method, path in kube.sent if "/roles/" in path]


def test_the_evil_template_is_one_that_the_api_takes() -> None:
    """Else the tests above would say nothing: a spec that cannot be loaded is ignored anyway."""
    from tests.support.operator.harness import make_job

    job = make_job(rollout={"template": copy.deepcopy(EVIL_TEMPLATE)})
    assert job.spec.rollout.template.spec["serviceAccountName"] == "other-account"
