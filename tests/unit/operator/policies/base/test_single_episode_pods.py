"""Pods that run one episode: when one is used, and how many count as ready while they are replaced."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.policies.base.runners import RunnerPod, Runners
from rljob_operator.policies.base.single_episode_pods import (
    START_SECONDS,
    is_used,
    next_checks,
    parse_runner_pod,
    ready,
    runs_no_more,
    used,
)
from tests.support.operator.environment_jobs import SHELL, with_environments
from tests.support.operator.harness import NOW
from tests.support.operator.plan_cluster import Cluster

Json = dict[str, Any]
OLD, YOUNG = NOW - timedelta(seconds=START_SECONDS), NOW - timedelta(seconds=START_SECONDS - 1)
ONE_EPISODE = {**SHELL, "reset": "Pod", "episodesPerRunner": 1, "runners": 2}


def pod(name: str = "p", created: datetime = OLD, **state: bool) -> RunnerPod:
    return RunnerPod(name, f"uid-{name}", created, **state)


def item(code: int | None = None, place: str = "state", container: str = "main", **meta: Any) -> Json:
    ended = {} if code is None else {place: {"terminated": {"exitCode": code}}}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{"name": container, **ended}]}
    created = {"name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**created, **meta}, "status": status}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (item(86), True),
        (item(86, "lastState"), True),
        (item(0), False),
        (item(1, "lastState"), False),
        (item(86, container="logs"), False),
        (item(), False),
        ({"metadata": {}}, False),
    ],
    ids=["ended", "started again", "told to end", "crashed", "a sidecar's code", "runs", "no status"],
)
def test_a_pod_is_used_when_its_runner_has_said_so(seen: Json, expected: bool) -> None:
    assert is_used(seen) is expected


def test_a_pod_is_read_from_its_api_object() -> None:
    found = parse_runner_pod(item(86, deletionTimestamp="2026-01-01T00:00:09Z"))
    assert found.created is not None
    assert (found.name, found.uid, found.created.year, found.ready, found.used, found.deleting, found.failing) == (
        ("p", "u", 2026, True, True, True, False)
    )


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ((pod(ready=True), pod(ready=True)), 2),
        ((pod(ready=True), pod()), 1),
        ((pod(ready=True), pod(created=YOUNG)), 2),
        ((pod(ready=True), pod(created=YOUNG, failing=True)), 1),
        ((pod(ready=True), pod(used=True)), 2),
        ((pod(ready=True), pod(deleting=True)), 2),
        ((pod(ready=True),), 2),
        ((), 2),
        ((pod(), pod()), 0),
    ],
    ids=[
        "all",
        "one late",
        "one young",
        "one fails",
        "one used",
        "one ending",
        "one not made",
        "none made",
        "all late",
    ],
)
def test_a_pod_that_takes_the_place_of_a_used_one_counts_as_ready(pods: tuple[RunnerPod, ...], expected: int) -> None:
    seen = Runners("shell", wanted=2, ready=sum(one.ready for one in pods), single_episode_pods=pods)
    assert ready(seen, NOW, True) == expected
    assert ready(replace(seen, single_episode_pods=None), NOW, True) == seen.ready
    was_used = any(one.used for one in pods)
    assert ready(seen, NOW, False) == (expected if was_used else seen.ready), "what had an episode was ready"
    ends = was_used or any(one.deleting for one in pods)
    assert ready(replace(seen, refused="a quota"), NOW, True) == (expected if ends else seen.ready)


def test_it_is_looked_at_again_when_a_young_pod_is_late() -> None:
    pods = (pod(ready=True), pod(created=YOUNG), pod(used=True), pod(deleting=True))
    assert next_checks([Runners("shell", single_episode_pods=pods), Runners("calc")]) == [NOW + timedelta(seconds=1)]


@given(st.lists(st.builds(pod, st.text("ab", min_size=1), st.sampled_from([OLD, YOUNG]), used=st.booleans(),
                          deleting=st.booleans(), ready=st.booleans(), failing=st.booleans()), max_size=6))  # fmt: skip
def test_only_used_pods_are_deleted_and_each_once(pods: list[RunnerPod]) -> None:
    seen = Runners("shell", wanted=3, ready=sum(one.ready for one in pods), single_episode_pods=tuple(pods))
    deleted = {one.uid for one in used([seen])}
    left = tuple(replace(one, deleting=one.deleting or one.uid in deleted) for one in pods)
    assert used([replace(seen, single_episode_pods=left)]) == ()
    assert seen.ready <= ready(seen, NOW, True) <= max(seen.ready, seen.wanted)


def at_work() -> Cluster:
    cluster = Cluster(with_environments(ONE_EPISODE))
    cluster.settle()
    cluster.start_all()
    _pods_are(cluster, pod("a", ready=True), pod("b", ready=True))
    cluster.settle()
    assert cluster.status.is_true("Ready")
    return cluster


def _pods_are(cluster: Cluster, *pods: RunnerPod) -> None:
    seen = cluster.runners["shell"]
    cluster.runners["shell"] = replace(seen, single_episode_pods=pods, ready=sum(one.ready for one in pods))


def test_used_pods_are_deleted_and_the_conditions_stay() -> None:
    cluster = at_work()
    assert cluster.decide().empty
    _pods_are(cluster, pod("a", used=True), pod("b", ready=True))
    decided = cluster.decide()
    assert [one.name for one in decided.used_pods] == ["a"]
    assert (decided.empty, decided.status, decided.events) == (False, None, ())
    _pods_are(cluster, pod("c", created=cluster.now), pod("a", used=True, deleting=True), pod("b", ready=True))
    decided = cluster.decide()
    assert (decided.used_pods, decided.status) == ((), None)
    assert decided.again_seconds == START_SECONDS
    cluster.now += timedelta(seconds=START_SECONDS)
    cluster.settle()
    assert cluster.status.is_true("Degraded"), "the pod of the next episode is late"


def test_before_a_job_was_ready_no_pod_takes_the_place_of_another() -> None:
    cluster = Cluster(with_environments(ONE_EPISODE))
    cluster.settle()
    cluster.start_all()
    _pods_are(cluster, pod("a", created=cluster.now), pod("b", created=cluster.now))
    cluster.settle()
    assert not cluster.status.is_true("Ready")


def test_a_pod_that_was_used_before_all_were_ready_was_ready() -> None:
    """With many runners some pod is always replaced. The job has started nevertheless."""
    cluster = Cluster(with_environments(ONE_EPISODE))
    cluster.settle()
    cluster.start_all()
    _pods_are(cluster, pod("a", used=True), pod("b", created=cluster.now))
    cluster.settle()
    assert cluster.status.is_true("Ready")
    assert cluster.status.first_ready_time is not None


def test_a_quota_that_counts_a_used_pod_stalls_nothing_while_the_pod_ends() -> None:
    cluster = at_work()
    _pods_are(cluster, pod("a", used=True, deleting=True), pod("b", ready=True))
    cluster.runners["shell"] = replace(cluster.runners["shell"], refused='pods "x" is forbidden: exceeded quota')
    decided = cluster.decide()
    assert (decided.status, decided.events) == (None, ())
    _pods_are(cluster, pod("b", ready=True))
    cluster.settle()
    assert cluster.status.is_true("Stalled"), "the quota has no place for the next pod"


def test_a_pod_that_has_failed_is_another_ones_place() -> None:
    assert [runs_no_more({"status": {"phase": phase}}) for phase in ("Failed", "Succeeded", "Running", "Pending")] == [
        *(True, True, False, False)
    ]


def test_a_job_that_suspends_gets_new_pods_until_its_round_has_ended() -> None:
    cluster = at_work()
    spec = cluster.job.spec.model_copy(update={"suspend": True})
    cluster.job = cluster.job.model_copy(update={"spec": spec})
    _pods_are(cluster, pod("a", used=True), pod("b", ready=True))
    assert [one.name for one in cluster.decide().used_pods] == ["a"]
