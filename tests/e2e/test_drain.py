"""Nodes are drained while a job runs on them, one after the other or in a hurry: no finished update is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hack.local_cluster.settings import node_index
from tests.support.e2e.kubectl import Kubectl, runtime
from tests.support.e2e.life import (
    Clock,
    begin,
    drain,
    ends_with_every_response_trained_on_once,
    goes_on,
    node_of,
    nothing_goes_back,
)

pytestmark = [
    pytest.mark.realnodes,
    pytest.mark.slow,  # in make test: tests/unit/operator/policies/lifecycle/test_eviction.py
    pytest.mark.timeout(1800),
]

JOB = "drained"
GRACE_SECONDS = 75
"""Of a pod: `runPolicy.drainSeconds`, and some for its end."""
NOTICE_SECONDS = 120
"""From a cloud's word that it takes a spot machine back to the end of the machine."""
TAINT = "example.com/spot-interrupted"


@pytest.mark.parametrize("mode", ["OnPolicy", "Asynchronous"])
@pytest.mark.parametrize("role", ["trainer", "coordinator"])
def test_a_drained_node_costs_no_finished_update(
    kubectl: Kubectl, minimal: dict[str, Any], role: str, mode: str
) -> None:
    begin(kubectl, minimal, JOB, mode=mode)
    node = node_of(kubectl, JOB, role)
    with nothing_goes_back(kubectl, JOB):
        clock = Clock()
        drained = drain(kubectl, node)
        try:
            kubectl.wait("another pod", lambda: _elsewhere(kubectl, role, node))
            saved = _saved(kubectl)
            kubectl.wait("rounds go on", lambda: kubectl.rounds(JOB) >= saved + 2)
        finally:
            kubectl("uncordon", node)
        went_on = clock.seconds
    assert drained < GRACE_SECONDS, "it was let go, and not killed"
    assert saved >= 3
    story = kubectl("describe", "rljob", JOB)
    assert f"{role}-0 is being deleted: it saves its state first" in story
    assert f"{role}-0 is replaced by incarnation 2" in story
    ends_with_every_response_trained_on_once(kubectl, JOB)
    print(f"{role}, {mode}: drained in {drained:.0f} s, two rounds later after {went_on:.0f} s, saved at round {saved}")


def _elsewhere(kubectl: Kubectl, role: str, node: str) -> bool:
    return any(pod["spec"].get("nodeName") not in (None, node) for pod in kubectl.pods(JOB, role))


def _saved(kubectl: Kubectl) -> int:
    """The round of the checkpoint, the only one: the coordinator tells of it beside what the operator does."""
    checkpoint = kubectl.wait("a checkpoint is told", lambda: runtime(kubectl.job(JOB)).get("checkpoint"), 60)
    return int(checkpoint["round"])


@pytest.mark.parametrize("mode", ["OnPolicy", "Asynchronous"])
def test_every_node_is_drained_in_turn(kubectl: Kubectl, minimal: dict[str, Any], mode: str) -> None:
    """The operator's node is among them, and towards the end one that holds trainer and coordinator."""
    begin(kubectl, minimal, JOB, mode=mode, rollout={**minimal["spec"]["rollout"], "machines": 2})
    with nothing_goes_back(kubectl, JOB):
        for node in kubectl.nodes():
            here = [pod["metadata"]["name"] for pod in kubectl.pods(JOB) if pod["spec"].get("nodeName") == node]
            clock = Clock()
            drained = drain(kubectl, node)
            try:
                goes_on(kubectl, JOB)
            finally:
                kubectl("uncordon", node)
            told = f"drained in {drained:.0f} s, two rounds later after {clock.seconds:.0f} s"
            print(f"{mode}, {node} with {here}: {told}")
            assert drained < GRACE_SECONDS, "all of them were let go, and not killed"
    ends_with_every_response_trained_on_once(kubectl, JOB)


@pytest.mark.parametrize("notice", ["evicted", "tainted"])
def test_a_spot_machine_is_taken_back(kubectl: Kubectl, minimal: dict[str, Any], real_nodes: Any, notice: str) -> None:
    """As the handlers of spot machines do: they cordon and evict, or taint; then the machine is off, and its Node goes.
    It is the trainer's."""
    begin(kubectl, minimal, JOB)
    node = node_of(kubectl, JOB, "trainer")
    with nothing_goes_back(kubectl, JOB):
        clock = Clock()
        try:
            if notice == "evicted":
                drain(kubectl, node, NOTICE_SECONDS - 10)
            else:
                kubectl("taint", "nodes", node, f"{TAINT}=true:NoExecute")
            kubectl.wait("another pod", lambda: _elsewhere(kubectl, "trainer", node), NOTICE_SECONDS)
            saved = _saved(kubectl)
            kubectl.wait("two rounds later", lambda: kubectl.rounds(JOB) >= saved + 2)
            went_on = clock.seconds
            time.sleep(max(0.0, NOTICE_SECONDS - went_on))
            with _gone(kubectl, real_nodes, node):
                goes_on(kubectl, JOB, 3)
        finally:
            kubectl("uncordon", node)
            kubectl("taint", "nodes", node, f"{TAINT}-", check=False)
    assert went_on < NOTICE_SECONDS, "the job had moved before the machine was taken"
    assert "trainer-0 is being deleted: it saves its state first" in kubectl("describe", "rljob", JOB)
    ends_with_every_response_trained_on_once(kubectl, JOB)
    print(f"{notice}: two rounds later after {went_on:.0f} s, saved at round {saved}")


@contextmanager
def _gone(kubectl: Kubectl, real_nodes: Any, node: str) -> Iterator[None]:
    """The machine is off and its Node deleted. Another machine of the same name comes in the end."""
    real_nodes.node("kill", node_index(node))
    try:
        kubectl("delete", "node", node)
        yield
    finally:
        real_nodes.node("up", node_index(node))
