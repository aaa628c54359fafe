"""The demo's fault: a node with a rollout machine loses its power in the middle of the run, and nobody helps.

Only where the cluster's nodes can be switched off: on the local one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from hack.chaos.history import check_volume
from hack.chaos.observation import Observation
from hack.chaos.rows import machines_on, spare_nodes
from hack.chaos.watching import Watching
from hack.cluster import lifecycle, settings
from hack.cluster.kube import Api

AFTER_ROUND = 10
TAINT = "rljob.dev/demo=rollout:PreferNoSchedule"
MOMENTS = {
    "closed": "the chain is closed",
    "suspected": "the machine is a suspect",
    "created": "the replacement's pod is created",
    "joined": "it is ready and in the chain",
    "generating": "it generates again",
}


@dataclass
class Timeline:
    """When what was first seen of the loss of `machines`, in seconds after `at`. `before`: the last look before."""

    at: float
    machines: tuple[str, ...]
    before: Observation
    moments: dict[str, float] = field(default_factory=dict)

    def see(self, now: Observation) -> bool:
        """Take a look; whether all has been seen."""
        if now.at < self.at:
            return False
        if not set(self.machines) & set(now.chain):
            self._note("closed", now)
        if set(self.machines) <= {name for name, _ in now.suspects}:
            self._note("suspected", now)
        if all(self._replaced(name, now) for name in self.machines):
            self._note("created", now)
            self._follow(now)
        return MOMENTS.keys() == self.moments.keys()

    def _follow(self, now: Observation) -> None:
        if any(map(now.troubled, self.machines)):
            return
        self._note("joined", now)
        if set(self.machines) <= set(now.generating):
            self._note("generating", now)

    def _replaced(self, machine: str, now: Observation) -> bool:
        return now.incarnation(machine) > self.before.incarnation(machine)

    def _note(self, moment: str, now: Observation) -> None:
        self.moments.setdefault(moment, now.at - self.at)

    def table(self) -> str:
        """A line for each moment."""
        width = max(map(len, MOMENTS.values()))
        lines = [f"{', '.join(self.machines)}: seconds after the power was cut"]
        for moment, told in MOMENTS.items():
            seconds = self.moments.get(moment)
            lines.append(f"  {told:<{width}}  " + ("never" if seconds is None else f"{seconds:6.1f}"))
        return "\n".join(lines)


class PowerOff:
    """Watches a job on the local cluster and cuts the power of one node once it has done enough rounds."""

    def __init__(self, cluster: settings.Cluster, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._api = Api(cluster.kubeconfig)
        self._watching = Watching(self._api, namespace, name)
        self._node = ""
        self._over = threading.Event()
        self.timeline: Timeline | None = None
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """The job has ended."""
        self._over.set()
        self._thread.join(30)
        self._watching.close()
        if self.timeline is not None:
            print(f"demo: {self._node} is switched on again, for the next run", flush=True)
            lifecycle.node_command(self._cluster.name, "up", int(self._node.rpartition("-")[2]))

    def _run(self) -> None:
        while not self._over.is_set():
            seen = self._watching.next(0.5)
            if seen is None:
                continue
            if self.timeline is not None:
                if self.timeline.see(seen):
                    return
            elif seen.round >= AFTER_ROUND and seen.whole:
                self._cut(seen)

    def _cut(self, seen: Observation) -> None:
        operators = self._api.get("/api/v1/pods?labelSelector=app.kubernetes.io%2Fname%3Drljob")["items"]
        taken = {pod["spec"].get("nodeName") for pod in operators}
        nodes = [node for node in spare_nodes(seen) if node not in taken]
        if not nodes:
            where = ", ".join(f"{pod.machine} on {pod.node}" for pod in seen.pods if pod.live)
            self.trouble = f"no node has rollout machines alone, and so none was switched off: {where}"
            self._over.set()
            return
        self._node, machines = nodes[0], machines_on(seen, (nodes[0],))
        print(
            f"demo: the power of {self._node} with {', '.join(machines)} is cut, after round {seen.round}", flush=True
        )
        self.timeline = Timeline(time.time(), machines, seen)
        lifecycle.node_command(self._cluster.name, "kill", int(self._node.rpartition("-")[2]))


def last_line(runtime: dict[str, Any], faults: int, verdict: dict[str, Any], recovered: float | None) -> str:
    """What came of it, for people and programs."""
    lost, twice = (verdict.get(name, "unknown") for name in ("lost", "duplicated"))
    seconds = "never" if recovered is None else f"{recovered:.1f}"
    return (
        f"demo: Complete rounds={runtime['round']} reward_first={runtime['rewardFirst']:.3f} "
        f"reward_last={runtime['rewardLast']:.3f} weight_version={runtime['weightVersion']} "
        f"faults={faults} lost={lost} duplicated={twice} recovered_seconds={seconds}"
    )


def local_cluster(kubeconfig: str) -> settings.Cluster | None:
    """The local cluster with real nodes that this kubeconfig is of."""
    found = (one for one in settings.existing() if str(one.kubeconfig) == kubeconfig and one.kind == "real")
    return next(found, None)


def history(cluster: settings.Cluster, volume: str) -> dict[str, Any]:
    """What `rljob check` says of the store on a volume."""
    return check_volume(cluster.volumes / volume)
