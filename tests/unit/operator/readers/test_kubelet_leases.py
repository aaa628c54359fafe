"""Kubelets that have stopped to renew their Leases: who counts as silent, and what their silence is worth."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_kube.errors import ApiError, Unreachable
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.failure import losses as machine_losses
from rljob_operator.readers.kubelet_leases import NAMESPACE, KubeletLeaseMonitor
from tests.support.operator.plan_nodes import working

JOB, OTHER = ("ns", "demo"), ("ns", "other")


class World:
    """Two nodes whose kubelets renew every 10 s while they live, a clock, and an API server that may be away."""

    def __init__(self) -> None:
        self.now = 0.0
        self.died: dict[str, float] = {}
        self.away = False
        self.asked: list[str] = []
        self.woken: list[tuple[str, str]] = []
        kube: Any = self
        self.kubelets = KubeletLeaseMonitor(kube, self.woken.append, interval=5.0, clock=lambda: self.now)

    async def get(self, resource: Any, namespace: str | None, name: str) -> dict[str, Any]:
        if self.away:
            raise Unreachable("no answer")
        assert namespace == NAMESPACE
        self.asked.append(name)
        if name == "virtual":
            raise ApiError(404, "NotFound", "no such Lease")
        return {"spec": {"renewTime": f"turn {min(self.now, self.died.get(name, self.now)) // 10}"}}

    async def pass_(self, seconds: float) -> None:
        """Looks go on meanwhile, where there is an answer."""
        end = self.now + seconds
        while self.now < end:
            self.now += 5.0
            try:
                await self.kubelets.check()
            except Unreachable:
                assert self.away


async def test_a_kubelet_that_misses_its_turn_is_silent() -> None:
    world = World()
    world.now = world.died["one"] = 1000.0
    assert world.kubelets.silent(JOB, ["one", "two"]) == frozenset()
    assert world.kubelets.silent(OTHER, ["two"]) == frozenset()
    await world.pass_(15)
    assert world.kubelets.silent(JOB, ["one", "two"]) == frozenset(), "it may be about to"
    await world.pass_(5)
    assert world.kubelets.silent(JOB, ["one", "two"]) == {"one"}
    assert world.woken == [JOB], "once, and no other job"
    await world.pass_(60)
    assert world.kubelets.silent(JOB, ["one", "two"]) == {"one"}
    assert world.woken == [JOB]
    del world.died["one"]
    await world.pass_(10)
    assert world.kubelets.silent(JOB, ["one", "two"]) == frozenset(), "it is back"


async def test_only_nodes_in_doubt_are_looked_at() -> None:
    world = World()
    await world.pass_(10)
    assert world.asked == []
    world.kubelets.silent(JOB, ["one"])
    await world.pass_(10)
    assert world.asked == ["one", "one"]
    world.kubelets.silent(JOB, [])
    await world.pass_(10)
    assert world.asked == ["one", "one"]


@pytest.mark.parametrize("answers", [True, False])
async def test_time_without_a_watch_is_held_against_no_kubelet(answers: bool) -> None:
    """The API server was away, or this process was stopped."""
    world = World()
    world.died["one"] = 0.0
    world.kubelets.silent(JOB, ["one"])
    await world.pass_(15)
    if answers:
        world.now += 60
    else:
        world.away = True
        await world.pass_(60)
        world.away = False
    await world.pass_(15)
    assert world.kubelets.silent(JOB, ["one"]) == frozenset()
    await world.pass_(10)
    assert world.kubelets.silent(JOB, ["one"]) == {"one"}


async def test_a_node_without_a_lease_is_not_silent() -> None:
    world = World()
    world.kubelets.silent(JOB, ["virtual"])
    await world.pass_(60)
    assert world.kubelets.silent(JOB, ["virtual"]) == frozenset()


@pytest.mark.parametrize(
    ("witnesses", "silent", "lost"),
    [(1, (), False), (1, ("node-of-rollout-0-1",), True), (1, ("node-of-rollout-1-1",), False), (2, (), True)],
)
def test_the_kubelets_silence_is_a_second_witness(witnesses: int, silent: tuple[str, ...], lost: bool) -> None:
    """In a job of one machine there is no neighbour to be one."""
    cluster = working(1)
    cluster.suspect("rollout-0", witnesses=witnesses)
    seen = Observed(tuple(cluster.pods.values()), nodes=cluster.nodes, silent_nodes=frozenset(silent))
    assert machine_losses.suspected_nodes(seen.pods, cluster.status) == {"node-of-rollout-0-1"}
    losses = machine_losses.find_losses({"rollout-0": next(iter(cluster.status.members)).role}, seen, cluster.status)
    assert [(loss.machine, loss.reason, loss.doubted) for loss in losses] == (
        [("rollout-0", "HeartbeatLost", True)] if lost else []
    )
    assert not (lost and silent) or "the kubelet of node-of-rollout-0-1" in losses[0].message


def test_a_silent_kubelet_alone_loses_no_machine() -> None:
    """The node controller says when that is enough."""
    cluster = working(1)
    seen = Observed(tuple(cluster.pods.values()), nodes=cluster.nodes, silent_nodes=frozenset(cluster.nodes))
    placed = {member.machine: member.role for member in cluster.status.members}
    assert machine_losses.find_losses(placed, seen, cluster.status) == []
    assert machine_losses.suspected_nodes(seen.pods, cluster.status) == frozenset()
