"""Lost nodes: grace, avoiding, force, and many together."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.spec import NodeFailure
from rljob_api.status import AvoidedNode, Replacements, Role
from rljob_kube.errors import ApiError
from rljob_operator.metrics import Metrics
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import Node, Observed, Pod, parse_node, parse_pod
from rljob_operator.policies.failure import mass_failure_hold, nodes
from rljob_operator.policies.pods.manifests import render_pod
from rljob_operator.readers.node_cache import NodeCache
from rljob_operator.watch import WatchHandlers
from tests.support.examples import examples
from tests.support.operator.harness import NOW, make_job
from tests.support.operator.plan_cluster import Cluster
from tests.support.operator.plan_nodes import Nodes, working

GRACE = NodeFailure().grace_seconds


def live(cluster: Cluster, machine: str) -> list[int]:
    return [p.incarnation for p in cluster.pods.values() if p.machine == machine and not p.deleting and not p.terminal]


def reasons(cluster: Nodes) -> list[str]:
    return [event.reason for event in cluster.decide().events]


# --- grace ------------------------------------------------------------------------------------------------------------


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


# --- avoiding ---------------------------------------------------------------------------------------------------------


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


# --- force ------------------------------------------------------------------------------------------------------------


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


# --- many together ---------------------------------------------------------------------------------------------------


def test_many_nodes_together_are_more_likely_the_network() -> None:
    cluster = working(5)
    cluster.suspect("rollout-0", "rollout-1", "rollout-2")
    decided = cluster.decide()
    assert decided.losses == ()
    assert "ReplacementPaused" in [event.reason for event in decided.events]
    assert decided.again_seconds == mass_failure_hold.GRACES * GRACE
    cluster.settle()
    assert cluster.status.condition("Degraded").reason == "ReplacementPaused"  # type: ignore[union-attr]
    assert cluster.decide().empty
    cluster.suspect("rollout-0")  # two of them are back
    assert "ReplacementResumed" in reasons(cluster)
    cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(5)] == [[2], [1], [1], [1], [1]]


def test_after_the_pause_they_are_replaced_one_by_one() -> None:
    cluster = working(4)
    cluster.fall(*(f"node-of-rollout-{n}-1" for n in range(4)))
    cluster.settle()
    began = cluster.now
    replaced: list[float] = []
    for _ in range(200):
        cluster.wait(1)
        before = len(cluster.pods)
        cluster.settle()
        cluster.place()
        replaced += [(cluster.now - began).total_seconds()] * (len(cluster.pods) - before)
    assert len(replaced) == 4
    assert replaced[0] == GRACE + mass_failure_hold.GRACES * GRACE
    assert [b - a for a, b in pairwise(replaced[:3])] == [GRACE] * 2


def test_one_node_with_all_machines_is_one_failure() -> None:
    cluster = working(3, where=dict.fromkeys(("rollout_0", "rollout_1", "rollout_2"), "one"))
    cluster.suspect("rollout-0", "rollout-1", "rollout-2")
    assert len(cluster.decide().losses) == 3


def test_machines_of_one_node_that_fail_in_sequence_are_one_failure() -> None:
    cluster = working(3, where={"rollout_0": "one", "rollout_1": "one", "rollout_2": "two"})
    for number in range(2):
        cluster.suspect(f"rollout-{number}")
        cluster.wait(2)
        cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(3)] == [[2], [2], [1]]


def test_the_last_of_a_wave_does_not_pass_for_a_single_failure() -> None:
    """A fault of the network reaches the operator one machine after the other."""
    cluster = working(4)
    for number in range(4):
        cluster.suspect(f"rollout-{number}")
        cluster.wait(2)
        cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(4)] == [[2], [2], [1], [1]]


def test_failures_one_after_the_other_do_not_pause() -> None:
    """Each machine is up again before the next one falls."""
    cluster = working(3)
    for number in range(3):
        cluster.suspect(f"rollout-{number}")
        cluster.settle()
        cluster.start_all()
        cluster.place()
        cluster.wait(5)
        cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(3)] == [[2]] * 3


def test_what_has_ended_waits_for_no_pause() -> None:
    cluster = working(3)
    cluster.suspect("rollout-0", "rollout-1")
    name = "demo-rollout-2-1"
    cluster.pods[name] = replace(cluster.pods[name], phase="Failed", ready=False)
    cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(3)] == [[1], [1], [2]]


def test_a_successor_that_the_status_lacks_causes_no_hold() -> None:
    """The operator died after it had created the pod; it counts the loss, and among those that fell together."""
    cluster = working(3)
    cluster.suspect("rollout-0")
    decided = cluster.decide()
    cluster.apply(decided, steps=bool(decided.children) + len(decided.creations))
    assert live(cluster, "rollout-0") == [1, 2]
    cluster.suspect("rollout-0", "rollout-1")
    decided = cluster.decide()
    assert [loss.machine for loss in decided.losses] == ["rollout-0"]
    assert "ReplacementPaused" in [event.reason for event in decided.events]
    cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(3)] == [[2], [1], [1]]
    assert cluster.status.replacements is not None
    assert cluster.status.replacements.total == 1


def test_a_fresh_operator_waits_as_long() -> None:
    """Everything is in the status: the same cluster, decided by a process without memory."""
    cluster = working(3)
    cluster.suspect("rollout-0", "rollout-1")
    cluster.settle()
    memory = cluster.status.replacements
    assert isinstance(memory, Replacements)
    assert memory.pause is not None
    cluster.wait(20)
    cluster.settle()
    assert cluster.status.replacements == memory


@settings(max_examples=examples(30))
@given(st.integers(2, 6), st.data())
def test_a_pause_never_outlasts_its_bound(machines: int, data: st.DataObject) -> None:
    """Whatever falls, and however nodes are shared: everything is replaced in bounded time, and never by two
    simultaneously while more than half are in doubt."""
    where = {f"rollout_{n}": data.draw(st.sampled_from(["a", "b", "c", f"own-{n}"])) for n in range(machines)}
    cluster = working(machines, where=where)
    fallen = data.draw(st.sets(st.integers(0, machines - 1), min_size=1))
    cluster.suspect(*(f"rollout-{n}" for n in fallen))
    for _ in range(30):
        many = 2 * len(fallen) > machines and len({where[f"rollout_{n}"] for n in fallen}) >= 2
        losses = cluster.decide().losses
        assert not many or len(losses) <= 1
        cluster.settle()
        cluster.start_all()
        fallen -= {n for n in fallen if live(cluster, f"rollout-{n}") != [1]}
        cluster.wait(GRACE)
    assert not fallen


# --- parsing ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("keys", "chain"),
    [
        (["example.com/rack"], ("rollout-1", "rollout-3", "rollout-0", "rollout-2")),  # the trainer's comes first
        ([], ("rollout-0", "rollout-1", "rollout-2", "rollout-3")),
    ],
)
def test_the_chain_goes_through_one_rack_after_the_other(keys: list[str], chain: tuple[str, ...]) -> None:
    cluster = Nodes(make_job(rollout={"machines": 4}, relay={"topologyKeys": keys}))
    cluster.settle()
    cluster.start_all()
    for name, rack in {"n0": "a", "n1": "b", "n2": "a", "n3": "b", "n4": "b"}.items():
        cluster.nodes[name] = Node(name, labels={"example.com/rack": rack})
    cluster.place(rollout_0="n0", rollout_1="n1", rollout_2="n2", rollout_3="n3", trainer_0="n4")
    cluster.settle()
    assert cluster.status.relay is not None
    assert cluster.status.relay.chain == chain


# --- the watch --------------------------------------------------------------------------------------------------------


def _node(name: str = "n1", ready: str = "True", *taints: str, version: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": str(version)},
        "spec": {"taints": [{"key": taint, "effect": "NoExecute"} for taint in taints]},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "images": [{"names": [str(version)]}]},
    }


def _body(name: str, job: str, node: str | None) -> dict[str, Any]:
    labels = {"rljob.dev/job": job}
    meta = {"namespace": "space", "name": name, "uid": f"uid-{name}", "labels": labels, "resourceVersion": "5"}
    return {"metadata": meta, "spec": {"nodeName": node} if node else {}}


class Api:
    """The API server's answers about nodes, counted."""

    def __init__(self, *nodes: dict[str, Any], status: int = 0) -> None:
        self.nodes = {node["metadata"]["name"]: node for node in nodes}
        self.status = status
        self.asked: list[str] = []

    async def read(self, resource: Any, namespace: Any, keep: Any, **_: Any) -> list[Any]:
        if self.status:
            raise ApiError(self.status, "Forbidden", "not allowed")
        return list(map(keep, self.nodes.values()))

    async def get(self, resource: Any, namespace: Any, name: str) -> dict[str, Any]:
        self.asked.append(name)
        if name not in self.nodes:
            raise ApiError(404, "NotFound", "no such node")
        return self.nodes[name]


async def test_a_nodes_report_wakes_only_the_jobs_on_it_and_only_when_it_matters() -> None:
    marks: list[tuple[str, str]] = []
    api = Api(_node("n1"), _node("n2"))
    book = NodeCache(api)  # type: ignore[arg-type]
    await book.prime()
    watch = WatchHandlers(
        lambda key, seconds: marks.append(key), lambda key, uid: None, mock.Mock(), book, mock.Mock(), Metrics()
    )

    def woken() -> list[str]:
        found = sorted({job for _, job in marks})
        marks.clear()
        return found

    for name, job, node in (("a-0", "a", "n1"), ("a-1", "a", "n1"), ("b-0", "b", "n2"), ("c-0", "c", None)):
        watch.pod_event("ADDED", _body(name, job, node))
    marks.clear()
    for version in range(5):
        watch.node_event("MODIFIED", _node("n1", version=version))
    assert woken() == [], "a kubelet reports all day"
    watch.node_event("MODIFIED", _node("n1", "Unknown"))
    assert woken() == ["a"]
    watch.node_event("MODIFIED", _node("n1", "Unknown", "node.kubernetes.io/unreachable"))
    assert woken() == []
    watch.node_event("MODIFIED", _node("n1", "Unknown", "node.kubernetes.io/out-of-service"))
    assert woken() == ["a"]
    watch.node_event("DELETED", _node("n2"))
    assert woken() == ["b"]
    api.nodes = {"n1": _node("n1", "Unknown", "node.kubernetes.io/out-of-service")}
    assert (await book.facts(["n1", "n2"])) == {
        "n1": Node("n1", ready=False, fenced=True),
        "n2": Node("n2", ready=False, gone=True),
    }
    watch.pod_event("MODIFIED", _body("c-0", "c", "n1"))
    for name in ("a-0", "a-1"):
        watch.pod_event("DELETED", _body(name, "a", "n1"))
    marks.clear()
    watch.node_event("MODIFIED", _node("n1"))
    assert woken() == ["c"]


async def test_a_node_counts_as_deleted_on_the_api_servers_word_alone() -> None:
    api = Api(_node("n1"), _node("n2"))
    book = NodeCache(api)  # type: ignore[arg-type]
    assert await book.facts(["n1"]) == {}, "an operator that may not see nodes knows of none"
    await book.prime()
    api.nodes["n3"] = _node("n3", "False")
    assert await book.facts(["n3", "n4"]) == {"n3": Node("n3", ready=False), "n4": Node("n4", ready=False, gone=True)}
    assert api.asked == ["n3", "n4"]
    await book.facts(["n1", "n2"])
    assert api.asked == ["n3", "n4"], "what the watch shows to be ready costs nothing"


async def test_a_watch_that_stands_still_fails_no_node() -> None:
    api = Api(_node("n1", "Unknown"))
    book = NodeCache(api)  # type: ignore[arg-type]
    await book.prime()
    book.hosts("uid", "n1", ("ns", "a"))
    api.nodes["n1"] = _node("n1")
    assert await book.facts(["n1"]) == {"n1": Node("n1")}
    assert book.observe("MODIFIED", _node("n1")) == [("ns", "a")], "its jobs are told when the watch goes on"
    book.observe("DELETED", _node("n1"))
    assert await book.facts(["n1"]) == {"n1": Node("n1")}, "another node of this name is there by now"


async def test_without_the_right_to_see_nodes_the_operator_goes_on() -> None:
    book = NodeCache(Api(status=403))  # type: ignore[arg-type]
    await book.prime()
    assert not book.open
    book = NodeCache(Api(status=500))  # type: ignore[arg-type]
    with pytest.raises(ApiError):
        await book.prime()


async def test_what_a_node_offers_is_known_though_it_wakes_no_job() -> None:
    book = NodeCache(Api(_node("n1"), _node("n2")))  # type: ignore[arg-type]
    assert book.all() is None, "no list has been allowed"
    await book.prime()
    offers = {**_node("n1")}
    offers["status"] = {**offers["status"], "allocatable": {"cpu": "8"}}
    assert book.observe("MODIFIED", offers) == []
    book.observe("DELETED", _node("n2"))
    nodes = book.all()
    assert nodes is not None
    assert [(node.name, node.allocatable) for node in nodes] == [("n1", {"cpu": "8"})]
