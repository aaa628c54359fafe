"""A simulated API server for `plan` whose pods stand on nodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from rljob_api.spec import NodeFailure
from rljob_operator.policies.base.observation import Node
from tests.support.operator.harness import make_job
from tests.support.operator.plan_cluster import Cluster

GRACE = NodeFailure().grace_seconds


class Nodes(Cluster):
    """A cluster whose pods run on nodes."""

    def place(self, **where: str) -> None:
        """Pods without a node get one: `where` by machine (`rollout_1`), else one of the machine's name."""
        for name, pod in list(self.pods.items()):
            if pod.node is None:
                node = where.get(pod.machine.replace("-", "_"), f"node-of-{pod.machine}-{pod.incarnation}")
                self.pods[name] = replace(pod, node=node)
                self.nodes.setdefault(node, Node(node))

    def fall(self, *names: str, **changes: Any) -> None:
        """Nodes are not ready."""
        for name in names:
            self.nodes[name] = Node(name, ready=False, **changes)

    def suspect(self, *machines: str, reason: str = "HeartbeatLost", witnesses: int = 2) -> None:
        """The coordinator reports these machines, as they are now."""
        told = [
            {
                "machine": machine,
                "incarnation": self.incarnation(machine),
                "reason": reason,
                "witnesses": ["coordinator", "rollout-9"][:witnesses],
            }
            for machine in machines
        ]
        self.report(suspects=told)

    def incarnation(self, machine: str) -> int:
        return next(m.incarnation for m in self.status.members if m.machine == machine)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def working(machines: int, *, where: dict[str, str] | None = None, **changes: Any) -> Nodes:
    """A job with all its pods at work, each on a node of its own unless `where` says otherwise."""
    cluster = Nodes(make_job(rollout={"machines": machines}, **changes))
    cluster.settle()
    cluster.start_all()
    cluster.place(**(where or {}))
    cluster.settle()
    assert cluster.status.is_true("Ready")
    return cluster


def live(cluster: Cluster, machine: str) -> list[int]:
    return [p.incarnation for p in cluster.pods.values() if p.machine == machine and not p.deleting and not p.terminal]


def reasons(cluster: Nodes) -> list[str]:
    return [event.reason for event in cluster.decide().events]
