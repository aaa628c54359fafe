"""Observation: what a policy reads of a pod."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.policies.base.observation import Node, Observed, parse_node, parse_pod, sort_pods


def _item(**status: Any) -> dict[str, Any]:
    labels = {"rljob.dev/role": "rollout", "rljob.dev/machine": "rollout-0", "rljob.dev/incarnation": "3"}
    return {"metadata": {"name": "demo-rollout-0-3", "uid": "u", "labels": labels}, "status": status}


def test_a_sidecar_that_lives_on_does_not_hide_the_end() -> None:
    ended = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    side = {"name": "logs", "state": {"running": {}}}
    pod = parse_pod(_item(phase="Running", containerStatuses=[side, ended]))
    assert pod is not None
    assert (pod.phase, pod.lingering, pod.terminal, pod.occupies) == ("Failed", True, True, True)
    alone = parse_pod(_item(phase="Running", containerStatuses=[ended]))
    assert alone is not None
    assert (alone.lingering, alone.terminal, alone.occupies) == (False, True, True), "the kubelet still ends it"
    gone = parse_pod(_item(phase="Failed", containerStatuses=[ended]))
    assert gone is not None
    assert (gone.terminal, gone.occupies) == (True, False)
    assert "OOMKilled, exit code 137" in pod.exit


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
)
def test_labels_that_are_not_ours_are_no_pods(value: Any) -> None:
    labels = {"rljob.dev/role": str(value), "rljob.dev/machine": "m", "rljob.dev/incarnation": str(value)}
    assert parse_pod({"metadata": {"name": "x", "labels": labels}}) is None
    assert parse_pod({"metadata": {"name": "x", "labels": None}, "status": None}) is None


def test_pods_of_an_earlier_job_are_told_apart() -> None:
    mine, theirs = _item(), _item()
    mine["metadata"]["ownerReferences"] = [{"uid": "job"}]
    theirs["metadata"]["ownerReferences"] = [{"uid": "old job"}]
    owned, foreign = sort_pods("job", [mine, theirs, {"metadata": {"name": "other"}}])
    assert (len(owned), len(foreign)) == (1, 1)
    seen = Observed(owned, foreign)
    assert seen.highest_incarnation("rollout-0") == 3
    assert seen.current("rollout-1") is None


@pytest.mark.parametrize(
    ("conditions", "taints", "ready", "fenced"),
    [
        ([{"type": "Ready", "status": "True"}], None, True, False),
        ([{"type": "Ready", "status": "Unknown"}], [{"key": "node.kubernetes.io/unreachable"}], False, False),
        ([{"type": "Ready", "status": "False"}], [{"key": "node.kubernetes.io/out-of-service"}], False, True),
        ([], None, False, False),
        (None, None, False, False),
    ],
)
def test_a_node_as_the_api_shows_it(conditions: Any, taints: Any, ready: bool, fenced: bool) -> None:
    item = {"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": {"conditions": conditions}}
    assert parse_node(item) == Node("n", ready=ready, fenced=fenced)
    item["metadata"]["labels"] = {"topology.kubernetes.io/zone": "z"}
    assert parse_node(item) == Node("n", ready=ready, fenced=fenced, labels={"topology.kubernetes.io/zone": "z"})
