"""Runners in a plan: when Deployments are applied, with how many pods, and what the status says of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.status import Condition
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.base.runners import Runners, own_runners, parse_runners, relevant_part
from rljob_operator.policies.pods.environments import to_stop
from tests.support.operator.environment_jobs import CALC, SHELL, with_environments
from tests.support.operator.harness import make_job
from tests.support.operator.plan_cluster import CONFIG, Cluster
from tests.support.operator.running_environments import running

Json = dict[str, Any]


def condition(cluster: Cluster, name: str) -> Condition:
    found = cluster.status.condition(name)
    assert found is not None
    return found


def told(cluster: Cluster) -> list[tuple[str, int, int | None]]:
    return [(one.name, one.runners, one.ready) for one in cluster.status.environments]


def test_a_new_job_gets_its_runners_after_its_pods() -> None:
    cluster = Cluster(with_environments(CALC, SHELL))
    first = cluster.decide()
    assert [one["spec"]["replicas"] for one in first.deployments] == [2, 1]
    cluster.apply(first, steps=3)  # the children and two pods: the operator dies
    assert cluster.applied == []
    cluster.settle()
    assert cluster.applied == [("calc", 2), ("shell", 1)]
    assert told(cluster) == [("calc", 2, 0), ("shell", 1, 0)]


def test_nothing_is_applied_while_nothing_changes() -> None:
    cluster = running()
    assert cluster.decide().empty
    assert len(cluster.applied) == 2
    assert make_job().status.environments == ()
    assert not Cluster(make_job()).decide().deployments


def test_no_runner_means_not_ready_and_too_few_mean_degraded() -> None:
    cluster = Cluster(with_environments(CALC, SHELL))
    cluster.settle()
    cluster.start_all()
    cluster.runners["calc"] = replace(cluster.runners["calc"], ready=0)
    cluster.settle()
    assert (condition(cluster, "Ready").reason, cluster.status.first_ready_time) == ("EnvironmentNotReady", None)
    assert condition(cluster, "Ready").message == "0 of 2 runners of environment calc are ready"
    cluster.runners["calc"] = replace(cluster.runners["calc"], ready=1)
    cluster.settle()
    assert cluster.status.is_true("Ready")
    assert condition(cluster, "Reconciling").reason == "Creating"
    cluster.run_runners()
    cluster.settle()
    assert cluster.status.first_ready_time is not None
    cluster.runners["calc"] = replace(cluster.runners["calc"], ready=1)
    cluster.settle()
    assert (condition(cluster, "Degraded").reason, condition(cluster, "Reconciling").reason) == (
        "RunnersMissing",
        "EnvironmentNotReady",
    )
    assert condition(cluster, "Degraded").message == "1 of 2 runners of environment calc are ready"
    assert told(cluster) == [("calc", 2, 1), ("shell", 1, 1)]


@pytest.mark.parametrize("change", [{"wanted": 5}, {"wanted": 0}, {"shape": "edited"}])
def test_a_deployment_that_is_not_as_wanted_is_applied_again(change: Json) -> None:
    cluster = running()
    cluster.runners["calc"] = replace(cluster.runners["calc"], **change)
    cluster.settle()
    assert cluster.applied[2:] == [("calc", 2)]


def test_runners_of_an_earlier_release_get_their_policies_immediately() -> None:
    """That release's policy opened the ports of all environments at every address."""
    cluster = running()
    cluster.runners["calc"] = replace(cluster.runners["calc"], egress="")
    decided = cluster.decide()
    assert {(one["kind"], one["metadata"]["name"]) for one in decided.children} == {
        ("NetworkPolicy", "demo-environments"),
        ("NetworkPolicy", "demo-environment-calc"),
    }
    assert [one["metadata"]["name"] for one in decided.deployments] == ["demo-environment-calc"]
    cluster.settle()
    assert cluster.decide().empty


def test_no_changed_policy_is_applied_while_runners_stop() -> None:
    cluster = running()
    cluster.runners["shell"] = replace(cluster.runners["shell"], egress="old")
    stopped = to_stop(cluster.job, cluster.observed(), CONFIG)
    assert [one["metadata"]["labels"].get("rljob.dev/egress") for one in stopped] == [
        cluster.runners["calc"].egress,
        "old",
    ], "none is applied while runners stop"
    assert all(not one["spec"]["replicas"] for one in stopped)


def test_a_deleted_deployment_comes_back_when_it_is_gone() -> None:
    cluster = running()
    cluster.runners["calc"] = replace(cluster.runners["calc"], deleting=True)
    assert not cluster.decide().deployments, "its end is an event"
    del cluster.runners["calc"]
    cluster.settle()
    assert cluster.applied[2:] == [("calc", 2)]


def test_an_edit_outside_the_hash_is_undone_at_the_next_check() -> None:
    cluster = running()
    cluster.children = False
    assert len(cluster.decide().deployments) == 2


def test_runners_stay_until_a_suspended_job_has_saved_its_state() -> None:
    cluster = running()
    cluster.job = cluster.job.model_copy(update={"spec": cluster.job.spec.model_copy(update={"suspend": True})})
    cluster.settle()
    assert cluster.applied[2:] == []
    assert told(cluster)[0] == ("calc", 2, 2), "the round that is still to end has turns"
    target = cluster.status.target
    assert target is not None
    cluster.report(event=1, applied=target.revision, stage="Suspended")
    cluster.apply(cluster.decide())
    assert cluster.applied[2:] == [("calc", 0), ("shell", 0)]
    assert told(cluster)[0] == ("calc", 0, 2)
    cluster.pods.clear()
    cluster.settle()
    assert condition(cluster, "Suspended").reason == "Suspending", "runners still exist"
    cluster.run_runners()
    cluster.settle()
    assert cluster.status.is_true("Suspended")
    assert told(cluster) == [("calc", 0, 0), ("shell", 0, 0)]
    assert cluster.decide().empty

    cluster.job = cluster.job.model_copy(update={"spec": cluster.job.spec.model_copy(update={"suspend": False})})
    cluster.settle()
    assert cluster.applied[4:] == [("calc", 2), ("shell", 1)]


def test_a_job_that_is_born_suspended_gets_no_deployment() -> None:
    cluster = Cluster(with_environments(suspend=True))
    cluster.settle()
    assert cluster.applied == []
    assert told(cluster) == [("calc", 0, 0)]


@pytest.mark.parametrize("outcome", ["Complete", "Failed"])
def test_an_ended_job_has_no_runners(outcome: str) -> None:
    cluster = running()
    cluster.report(event=1, finished={"outcome": outcome})
    cluster.settle()
    assert cluster.applied[2:] == [("calc", 0), ("shell", 0)]
    cluster.run_runners()
    cluster.settle()
    assert told(cluster) == [("calc", 0, 0), ("shell", 0, 0)]
    assert cluster.decide().empty


def test_a_job_that_the_operator_ends_has_no_runners() -> None:
    cluster = running(runPolicy={"activeDeadlineSeconds": 60})
    cluster.now += timedelta(seconds=61)
    cluster.settle()
    assert condition(cluster, "Failed").reason == "DeadlineExceeded"
    assert cluster.applied[2:] == [("calc", 0), ("shell", 0)]


def test_runners_wait_for_pods_that_are_refused() -> None:
    cluster = Cluster(with_environments())
    cluster.apply(cluster.decide(), refuses="trainer-0")
    assert cluster.applied == []


QUOTA = (
    'pods "demo-environment-calc-1-2" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4'
)


@pytest.mark.parametrize(
    ("seen", "reason", "words"),
    [
        (Runners("calc", refused=QUOTA), "QuotaExceeded", "environment calc: pods"),
        (Runners("calc", refused="pods is forbidden: violates PodSecurity"), "PodForbidden", "violates PodSecurity"),
        (Runners("calc", refused='Pod "x" is invalid: spec.nodeSelector'), "PodInvalid", "spec.nodeSelector"),
        (Runners("calc", wanted=2, ready=1, overdue="timed out"), "RunnersNotStarting", "1 of 2 runners"),
        (Runners("calc", wanted=2, ready=2, overdue="timed out"), None, ""),
        (Runners("calc", wanted=2), None, ""),
    ],
)
def test_why_runners_do_not_start(seen: Runners, reason: str | None, words: str) -> None:
    cluster = running()
    shape = cluster.runners["calc"].shape
    cluster.runners["calc"] = replace(seen, shape=shape, wanted=2)
    decided = cluster.decide()
    cluster.apply(decided)
    stalled = cluster.status.condition("Stalled")
    assert (stalled.reason if stalled is not None else None) == reason
    if stalled is not None:
        assert words in stalled.message
        assert reason in {event.reason for event in decided.events}


def test_reasons_come_from_the_deployments_conditions() -> None:
    item: Json = {
        "metadata": {"name": "d", "uid": "u", "labels": {"rljob.dev/environment": "calc", "rljob.dev/shape": "s"}},
        "spec": {"replicas": 3, "template": {"huge": "template"}},
        "status": {
            "replicas": 2,
            "readyReplicas": 1,
            "terminatingReplicas": 1,
            "conditions": [
                {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": QUOTA},
                {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},
            ],
        },
    }
    expected = Runners("calc", "u", "s", 3, 1, 3, refused=QUOTA, overdue="ProgressDeadlineExceeded")
    assert parse_runners(item) == parse_runners(relevant_part(item)) == expected
    assert "template" not in relevant_part(item)["spec"]
    for one in item["status"]["conditions"]:
        one["status"] = {"True": "False", "False": "True"}[one["status"]]
    assert parse_runners(item) == replace(expected, refused=None, overdue=None)
    item["metadata"]["generation"], item["status"]["observedGeneration"] = 3, 2
    assert parse_runners(item) == replace(expected, refused=None, overdue=None, current=False)
    item["status"]["observedGeneration"] = 3
    assert parse_runners(item) == replace(expected, refused=None, overdue=None)
    assert parse_runners({"metadata": {"labels": {"rljob.dev/job": "demo"}}}) is None


def test_only_own_deployments_count() -> None:
    """One of an earlier job of the same name is about to be collected."""
    labels = {"rljob.dev/environment": "calc"}
    mine = {"metadata": {"labels": labels, "ownerReferences": [{"uid": "mine"}]}, "spec": {"replicas": 2}}
    other = {"metadata": {"labels": labels, "ownerReferences": [{"uid": "other"}]}}
    assert own_runners("mine", [mine, other]) == {"calc": Runners("calc", wanted=2)}
    assert own_runners("mine", [other]) == {}


@pytest.mark.parametrize(
    ("one", "pods"),
    [
        (Runners("a"), 0),
        (Runners("a", pods=2), 2),
        (Runners("a", wanted=3), 3),  # the controller creates them just now
        (Runners("a", current=False), 1),  # it may have begun, and does not know yet that none are wanted
    ],
)
def test_pods_of_runners_are_gone_when_their_controller_says_so(one: Runners, pods: int) -> None:
    assert Observed(runners={"a": one, "b": Runners("b", pods=1)}).runner_pods == pods + 1
