"""Lost nodes: grace, avoiding, and force."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec import NodeFailure
from rljob_api.status import AvoidedNode, Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import Node, Observed, Pod, parse_pod
from rljob_operator.policies.failure import nodes
from rljob_operator.policies.pods.manifests import render_pod
from tests.support.operator.harness import NOW
from tests.support.operator.plan_nodes import GRACE, live, reasons, working


@pytest.mark.parametrize("gone", [False, True])
def test_a_node_that_is_not_ready_loses_its_machines_after_the_grace(gone: bool) -> None:
    cluster = working(3)
    cluster.fall("node-of-rollout-1-1", gone=gone)
    decided = cluster.decide()
    assert (decided.losses, decided.again_seconds) == ((), GRACE)
    cluster.settle()
    cluster.wait(GRACE - 1)
    assert not cluster.decide().losses
    cluster.wait(1)
    (loss,) = cluster.decide().losses
    assert (loss.machine, loss.reason, loss.counts, loss.slows) == ("rollout-1", "NodeNotReady", False, True)
    cluster.settle()
    assert live(cluster, "rollout-1") == [2]
    assert cluster.pods["demo-rollout-1-2"].avoids == ("node-of-rollout-1-1",)
    assert cluster.status.replacements is not None
    assert cluster.status.replacements.by_machine == {}


def test_a_node_that_comes_back_in_time_keeps_its_machines() -> None:
    cluster = working(3)
    cluster.fall("node-of-rollout-1-1")
    cluster.settle()
    cluster.wait(GRACE - 1)
    cluster.nodes["node-of-rollout-1-1"] = Node("node-of-rollout-1-1")
    cluster.settle()
    assert cluster.status.replacements is not None
    assert cluster.status.replacements.not_ready_nodes == ()
    cluster.fall("node-of-rollout-1-1")  # the grace begins again
    cluster.wait(5)
    cluster.settle()
    assert live(cluster, "rollout-1") == [1]


def test_without_facts_about_nodes_suspects_and_pods_decide() -> None:
    cluster = working(3)
    cluster.nodes.clear()
    cluster.wait(3600)
    assert cluster.decide().empty
    cluster.suspect("rollout-1")
    cluster.settle()
    assert live(cluster, "rollout-1") == [2]


def test_a_machine_that_was_given_up_and_lives_again_is_deleted() -> None:
    """Its deletion did not come through: the write that counted it did."""
    cluster = working(3)
    cluster.suspect("rollout-1")
    decided = cluster.decide()
    cluster.apply(replace(decided, removals=()))
    assert sorted(live(cluster, "rollout-1")) == [1, 2]
    again = cluster.decide()
    assert [(r.pod.incarnation, r.reason) for r in again.removals] == [(1, "Superseded")]
    assert again.losses == ()
    cluster.settle()
    assert live(cluster, "rollout-1") == [2]


@pytest.mark.parametrize(
    ("reason", "witnesses", "avoided"),
    [("HeartbeatLost", 2, True), ("KeepsFailing", 1, True), ("HeartbeatLost", 1, False)],
)
def test_the_node_of_a_lost_machine_is_avoided(reason: str, witnesses: int, avoided: bool) -> None:
    cluster = working(3)
    cluster.suspect("rollout-1", reason=reason, witnesses=witnesses)
    assert ("NodeAvoided" in reasons(cluster)) is avoided
    cluster.settle()
    assert cluster.status.replacements is not None
    found = [node.name for node in cluster.status.replacements.avoided_nodes]
    assert found == (["node-of-rollout-1-1"] if avoided else [])
    cluster.wait(3600)
    cluster.settle()
    assert cluster.status.replacements.avoided_nodes == ()


def test_a_pod_that_failed_by_itself_puts_no_node_out_of_favour() -> None:
    cluster = working(2)
    cluster.pods["demo-rollout-0-1"] = replace(cluster.pods["demo-rollout-0-1"], phase="Failed", ready=False)
    cluster.settle()
    assert cluster.status.replacements is not None
    assert cluster.status.replacements.avoided_nodes == ()


def test_no_node_is_avoided_where_the_policy_says_so() -> None:
    cluster = working(3, failurePolicy={"nodeFailure": {"avoidFailedNodesSeconds": 0}})
    cluster.suspect("rollout-1")
    cluster.settle()
    assert cluster.pods["demo-rollout-1-2"].avoids == ()


def test_a_pod_that_finds_no_other_node_gets_the_avoided_one() -> None:
    """A cluster of one node: better there than nowhere, and the one that is ready before the one that is not."""
    cluster = working(3, where=dict.fromkeys(("coordinator_0", "trainer_0", "rollout_0", "rollout_1"), "one"))
    cluster.suspect("rollout-2", reason="KeepsFailing", witnesses=1)
    cluster.settle()
    cluster.fall("node-of-rollout-2-1")
    cluster.suspect("rollout-1", reason="KeepsFailing", witnesses=1)
    cluster.settle()
    name = "demo-rollout-1-2"
    assert set(cluster.pods[name].avoids) == {"node-of-rollout-2-1", "one"}
    cluster.pods[name] = replace(cluster.pods[name], unschedulable="0/2 nodes")
    assert cluster.decide().creations == ()
    cluster.wait(Config().unschedulable_grace_seconds)
    decided = cluster.decide()
    assert "NodeForgiven" in [event.reason for event in decided.events]
    assert [c.new.incarnation for c in decided.creations] == [3]
    cluster.settle()
    assert live(cluster, "rollout-1") == [3]
    assert cluster.pods["demo-rollout-1-3"].avoids == ("node-of-rollout-2-1",)
    cluster.pods["demo-rollout-1-3"] = replace(cluster.pods["demo-rollout-1-3"], unschedulable="0/2 nodes")
    cluster.wait(60)
    assert cluster.decide().creations == (), "a node that is known to be dead helps no machine"


TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


@pytest.mark.parametrize(
    ("user", "terms"),
    [
        (None, 1),
        ({"podAffinity": {"x": 1}}, 1),
        ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, 1),
        (
            {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM, dict(TERM)]}
                }
            },
            2,
        ),
        (
            {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
                        ]
                    }
                }
            },
            1,
        ),
    ],
)
def test_avoided_nodes_are_left_out_of_every_alternative_of_the_template(
    user: dict[str, Any] | None, terms: int
) -> None:
    found: Any = nodes.affinity(user, ["n1", "n2"])
    required = found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert len(required) == terms
    for term in required:
        # API servers take one value in a field's requirement.
        left_out = [f["values"] for f in term["matchFields"] if f["operator"] == "NotIn"]
        assert left_out == [["n1"], ["n2"]]
        assert terms != 2 or term["matchExpressions"] == TERM["matchExpressions"]
    if user is not None:
        assert found.keys() >= user.keys()


def test_a_term_that_matches_nothing_stays_so() -> None:
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    user = {"nodeAffinity": {key: {"nodeSelectorTerms": [{}]}}}
    assert nodes.affinity(user, ["n"]) == user


def test_a_pod_tells_whom_it_avoids() -> None:
    cluster = working(2)
    manifest = render_pod(cluster.job, NewPod("rollout-0", Role.ROLLOUT, 2), 1, Config(), ["a", "b"])
    pod = parse_pod(manifest)
    assert pod is not None
    assert pod.avoids == ("a", "b")
    plain = render_pod(cluster.job, NewPod("rollout-0", Role.ROLLOUT, 2), 1, Config())
    assert "affinity" not in plain["spec"]
    assert "annotations" not in plain["metadata"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-10, 10)), max_size=5, unique_by=lambda t: t[0]),
    st.dictionaries(st.sampled_from("abc"), st.booleans()),
    st.sets(st.sampled_from("abcd")),
)
def test_one_useful_node_is_forgiven_at_a_time(
    avoided: list[tuple[str, int]], known: dict[str, bool], blamed: set[str]
) -> None:
    entries = [AvoidedNode(name=name, until=NOW + timedelta(hours=1, minutes=at)) for name, at in avoided]
    entries.sort(key=lambda entry: entry.until)
    pod = _pod(unschedulable="0/3", created=NOW - timedelta(minutes=1), avoids=tuple(sorted(blamed)), phase="Pending")
    seen = Observed((pod,), nodes={name: Node(name, ready=ready) for name, ready in known.items()})
    kept, forgiven = nodes.forgive(entries, seen, Config(), NOW)
    candidates = {name for name, _ in avoided if name in blamed and known.get(name, True)}
    assert (forgiven is not None) == bool(candidates)
    assert {entry.name for entry in kept} == {name for name, _ in avoided} - {forgiven}
    if forgiven is not None:
        assert forgiven in candidates
        assert known.get(forgiven) or not any(known.get(name) for name in candidates)


def _pod(**changes: Any) -> Pod:
    return Pod("demo-rollout-0-1", "uid", Role.ROLLOUT, "rollout-0", 1, **changes)


FENCED, GONE, DOWN, UP = (
    Node("n", ready=False, fenced=True),
    Node("n", ready=False, gone=True),
    Node("n", ready=False),
    Node("n"),
)
LONG_AGO = NOW - timedelta(seconds=GRACE)


@pytest.mark.parametrize(
    ("policy", "node", "deleting", "deletion", "forced"),
    [
        ("WhenFenced", FENCED, True, NOW, True),
        ("WhenFenced", GONE, True, NOW, True),
        ("WhenFenced", DOWN, True, LONG_AGO, False),
        ("WhenFenced", None, True, LONG_AGO, False),
        ("WhenFenced", FENCED, False, None, False),
        ("WhenFenced", Node("n", fenced=True), True, LONG_AGO, False),  # it is back: its kubelet will say
        ("Always", DOWN, True, LONG_AGO, True),
        ("Always", DOWN, True, NOW, False),  # the kubelet has its time
        ("Always", UP, True, LONG_AGO, False),
        ("Always", GONE, True, NOW, True),
        ("Never", GONE, True, LONG_AGO, False),
    ],
)
def test_what_is_deleted_by_force(
    policy: str, node: Node | None, deleting: bool, deletion: datetime | None, forced: bool
) -> None:
    seen = Observed((_pod(node="n", deleting=deleting, deletion=deletion),), nodes={} if node is None else {"n": node})
    removals, moments = nodes.stuck(seen, NodeFailure.model_validate({"forceDelete": policy}), NOW)
    assert [removal.force for removal in removals] == [True] * forced
    assert not (policy == "Always" and node is DOWN and not forced) or moments == [NOW + timedelta(seconds=GRACE)]


@pytest.mark.parametrize("ended", [False, True])
def test_a_fenced_node_gives_up_its_pods_in_every_state_of_the_job(ended: bool) -> None:
    cluster = working(2)
    name = "demo-rollout-0-1"
    cluster.pods[name] = replace(cluster.pods[name], deleting=True)
    cluster.fall("node-of-rollout-0-1", fenced=True)
    if ended:
        cluster.report(finished={"outcome": "Complete"})
    decided = cluster.decide()
    assert [r.pod.name for r in decided.removals if r.force] == [name]
    assert "PodForceDeleted" in [event.reason for event in decided.events]
