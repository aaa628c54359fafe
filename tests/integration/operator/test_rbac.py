"""The operator with the rights of `rbac.py` and no others, from a job's creation to its deletion."""

from __future__ import annotations

import pytest

from rljob_api.spec import Gang
from rljob_kube.connection import Connection
from rljob_kube.errors import ApiError
from rljob_kube.resources import EVENT, RLJOB, Json, Resource
from rljob_operator import rbac
from tests.support.operator.environment_jobs import CALC, run_runners
from tests.support.operator.gang_definitions import installed
from tests.support.operator.harness import Server, condition, gone, options, running, until
from tests.support.operator.users import limited_user, may

pytestmark = pytest.mark.cluster


async def _restricted(server: Server, connection: Connection) -> Connection:
    """A connection as a service account that a Role, called restricted, gives `JOB_RULES` and `LEADER_RULES` in the
    test's namespace."""
    rules = rbac.manifest_rules([*rbac.JOB_RULES, *rbac.LEADER_RULES])
    return await limited_user(server, connection, "restricted", rules)


async def test_a_whole_life_with_the_least_rights(connection: Connection, server: Server) -> None:
    restricted = await _restricted(server, connection)
    found = options(server.namespace, leader_elect=True, identity="least")
    asked: Json = {"accelerator": {"deviceClass": "gpu.example.com"}, "rollout": {"acceleratorsPerMachine": 1}}
    asked["environments"] = [CALC]
    asked["runPolicy"] = {"drainSeconds": 1, "ttlSecondsAfterFinished": 2}
    async with running(restricted, found) as operator:
        await server.apply_job(**asked)
        await server.until(lambda j: (j.get("status") or {}).get("members"))
        await server.start_all()
        await server.until(lambda j: j["status"].get("environments") == [{"name": "calc", "runners": 2, "ready": 0}])
        await run_runners(server)
        await server.until(lambda j: condition(j, "Ready") == "True/RoundsProgressing")
        await server.fail_pod("demo-coordinator-0-1")  # moves the Service
        await server.until(lambda j: j["status"]["coordinator"].get("restarts") == 1)
        await server.fail_pod("demo-rollout-0-1")
        await server.until(lambda j: j["status"]["replacements"]["total"] == 2)
        await server.start_all()
        await server.apply_job(**{**asked, "rollout": {"machines": 1, "acceleratorsPerMachine": 1}})
        await server.until(lambda j: condition(j, "Reconciling") is None and len(j["status"]["members"]) == 3)
        await server.report(event=1, finished={"outcome": "Complete"})
        await until(lambda: gone(server.kube, RLJOB, server.namespace, "demo"))
        refused = [
            sample.labels
            for metric in operator.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "rljob_operator_api_requests_total" and sample.labels["code"] == "403"
        ]
        assert refused == []
    events = await server.kube.list(EVENT, server.namespace)
    assert {"Created", "MachineLost", "Completed"} <= {event["reason"] for event in events}


async def test_what_it_may_not(connection: Connection, server: Server) -> None:
    restricted = await _restricted(server, connection)
    for group, kind, verb in (
        ("", "secrets", "get"),
        ("", "secrets", "list"),
        ("", "nodes", "delete"),
        ("", "pods/exec", "create"),
        ("apps", "deployments", "delete"),  # garbage collection does
        ("apps", "deployments", "update"),
        ("rljob.dev", "rljobs", "patch"),  # the spec is the user's
        ("rbac.authorization.k8s.io", "roles", "delete"),
        ("resource.k8s.io", "resourceclaimtemplates", "delete"),
        ("resource.k8s.io", "resourceclaims", "create"),
    ):
        assert not await may(restricted, server, group, kind, verb), f"{verb} {kind}"
    assert await may(restricted, server, "", "pods", "create")


async def test_pod_groups_need_the_right_that_their_scheduler_has_in_the_chart(
    connection: Connection, server: Server
) -> None:
    restricted, kind = await _restricted(server, connection), Gang.COSCHEDULING
    async with installed(server, kind), running(restricted, options(server.namespace)):
        await server.apply_job(scheduling={"gang": kind.value})
        job = await server.until(lambda j: condition(j, "Stalled") == "True/GangForbidden")
        stalled = next(c for c in job["status"]["conditions"] if c["type"] == "Stalled")
        assert "the chart's value gangScheduling with Coscheduling in it" in stalled["message"]
        assert await server.pods() == {}
        rules = rbac.manifest_rules([*rbac.JOB_RULES, *rbac.LEADER_RULES, *rbac.GANG_RULES[kind]])
        role = Resource("Role", "rbac.authorization.k8s.io", "v1", "roles")
        await server.kube.merge(role, server.namespace, "restricted", {"rules": rules})
        await server.until(lambda j: condition(j, "Stalled") is None)
        assert len(await server.pods()) == 4


async def test_a_missing_right_is_told_by_name(connection: Connection, server: Server) -> None:
    """Not a crash loop: the operator says what it lacks, and waits."""
    restricted = await _restricted(server, connection)
    elsewhere = options("kube-system")
    from rljob_operator.app import Operator

    operator = Operator(elsewhere, connection=restricted)
    async with operator._kube.opened():
        problem = await operator._missing()
    assert problem is not None
    assert problem.startswith("not allowed to list rljobs in namespace kube-system")
    with pytest.raises(ApiError):
        async with operator._kube.opened() as kube:
            await kube.list(RLJOB, "kube-system")


def test_the_rules_are_closed_under_what_is_handed_on() -> None:
    """The API server lets no user grant a right that the user lacks: the coordinator's Role must be within ours."""
    from rljob_operator.policies.pods.owned_objects import COORDINATOR_RULES_JOB

    for rule in COORDINATOR_RULES_JOB:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                assert rbac.allows(rbac.JOB_RULES, rule["apiGroups"][0], resource, verb), (resource, verb)
