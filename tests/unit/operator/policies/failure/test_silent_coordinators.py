"""Coordinators whose Lease expired: immediately replaced elsewhere, and counted when it is clear whose fault it was."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rljob_api.status import BackOff, Replacements
from rljob_operator.policies.base.observation import Node, Silence
from rljob_operator.policies.failure import losses
from tests.support.operator.harness import NOW
from tests.support.operator.plan_cluster import Cluster, running

COORDINATOR = "coordinator-0"


def cut_off(**changes: object) -> Cluster:
    """A job whose coordinator has fallen silent; its successor runs on another node."""
    cluster = running(**changes)
    place(cluster, 1, "node-1")
    cluster.nodes = {"node-1": Node("node-1"), "node-2": Node("node-2")}
    cluster.silence = Silence("demo-coordinator-0-1_x", 3.0)
    cluster.settle()
    cluster.silence = None
    assert cluster.pods["demo-coordinator-0-2"].avoids == ("node-1",)
    place(cluster, 2, "node-2")
    cluster.start_all()
    cluster.settle()
    return cluster


def place(cluster: Cluster, incarnation: int, node: str) -> None:
    name = f"demo-coordinator-0-{incarnation}"
    cluster.pods[name] = replace(cluster.pods[name], node=node)


def counted(cluster: Cluster) -> int:
    assert cluster.status.replacements is not None
    return cluster.status.replacements.by_machine.get(COORDINATOR, 0)


def later(cluster: Cluster, seconds: float) -> None:
    cluster.now += timedelta(seconds=seconds)
    cluster.settle()


def test_a_silent_coordinator_is_replaced_and_counts_on_a_healthy_node() -> None:
    cluster = cut_off()
    assert counted(cluster) == 0
    waits = cluster.decide().again_seconds
    assert waits is not None
    assert waits <= losses.SETTLED_SECONDS
    later(cluster, losses.SETTLED_SECONDS + 1)
    assert counted(cluster) == 1
    later(cluster, losses.SETTLED_SECONDS + 1)
    assert counted(cluster) == 1, "once"


@pytest.mark.parametrize("state", [{"ready": False}, {"ready": False, "gone": True}])
def test_a_coordinator_whose_node_was_lost_too_costs_no_budget(state: dict[str, bool]) -> None:
    cluster = cut_off(runPolicy={"backoffLimit": 0})
    later(cluster, 30)
    cluster.nodes["node-1"] = Node("node-1", **state)
    cluster.settle()
    assert cluster.status.replacements is not None
    assert cluster.status.replacements.backoff[COORDINATOR].reason == "NodeNotReady"
    cluster.nodes["node-1"] = Node("node-1")
    later(cluster, 300)
    assert counted(cluster) == 0, "the node is well again, and was not then"
    assert not cluster.status.is_true("Failed")


def test_a_job_without_budget_fails_when_it_is_clear_that_the_program_hung() -> None:
    cluster = cut_off(runPolicy={"backoffLimit": 0})
    later(cluster, 30)
    assert not cluster.status.is_true("Failed")
    later(cluster, 31)
    assert cluster.status.is_true("Failed")


def test_a_coordinator_that_hangs_again_and_again_uses_up_its_budget() -> None:
    """Each time before it is clear whether the one before counts."""
    cluster = running(runPolicy={"backoffLimit": 2}, failurePolicy={"backoff": {"initialSeconds": 1, "maxSeconds": 1}})
    for incarnation in (1, 2, 3):
        name = f"demo-coordinator-0-{incarnation}"
        cluster.silence = Silence(f"{name}_x", 3.0)
        cluster.settle()
        cluster.silence = None
        later(cluster, 5)
        cluster.start_all()
        cluster.settle()
    assert counted(cluster) == 2
    assert not cluster.status.is_true("Failed")
    later(cluster, losses.SETTLED_SECONDS + 1)
    assert cluster.status.is_true("Failed")


@pytest.mark.parametrize(
    ("node", "seconds", "counts", "unsettled", "reason"),
    [
        (Node("node-1"), 59, 0, True, "CoordinatorSilent"),
        (Node("node-1"), 61, 1, None, "CoordinatorSilent"),
        (Node("node-1", ready=False), 1, 0, None, "NodeNotReady"),
        (Node("node-1", ready=False), 61, 0, None, "NodeNotReady"),
        (None, 59, 0, True, "CoordinatorSilent"),
        (None, 61, 1, None, "CoordinatorSilent"),
    ],
)
def test_when_a_silent_coordinator_is_judged(
    node: Node | None, seconds: float, counts: int, unsettled: bool | None, reason: str
) -> None:
    """Where nothing is known of nodes (None), it counts."""
    entry = BackOff(failures=1, last_failure_time=NOW, reason="CoordinatorSilent", unsettled=True, node="node-1")
    nodes = {"node-1": node} if node is not None else {}
    memory = losses.settle(Replacements(backoff={COORDINATOR: entry}), nodes, NOW + timedelta(seconds=seconds))
    assert memory.by_machine.get(COORDINATOR, 0) == counts
    judged = memory.backoff[COORDINATOR]
    assert (judged.unsettled, judged.reason) == (unsettled, reason)
