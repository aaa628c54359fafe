"""Fault of the demo: a node with a rollout machine loses power during the run, and the job recovers without help.

Only the nodes of a local cluster can be switched off.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from hack.chaos.history import check_volume, interrupted_episodes
from hack.chaos.job_watch import JobWatch
from hack.chaos.observation import Observation
from hack.chaos.rows import machines_on, spare_nodes
from hack.chaos.timeline import Starts, Timeline
from hack.local_cluster import lifecycle, settings
from rljob_api import RLJob
from rljob_api.constants import (
    GATEWAY_METRICS_PORT,
    LABEL_ENVIRONMENTS_OF,
    ROLE_COORDINATOR,
)
from rljob_kube import kubeconfig
from rljob_kube.client import Items, KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import POD

AFTER = 1 / 3
"""Share of the rounds after which the node is switched off."""
EPISODE_SECONDS, EPISODE_PAUSE = 60.0, 0.1
"""Longest wait for episodes to begin, and the time between two looks. An episode takes longer than that."""
LEASED = "rljob_gateway_leased_total"
TAINT = "rljob.dev/demo=rollout:PreferNoSchedule"


class PowerOff:
    """Watches a job on the local cluster and cuts the power of one node after enough rounds."""

    def __init__(self, cluster: settings.Cluster, namespace: str, job: RLJob) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._job = job
        self._connection = kubeconfig.load([cluster.kubeconfig])
        self._watch = JobWatch(self._connection, namespace, job.name)
        self._node = ""
        self._over = threading.Event()
        self.starts = Starts()
        self.timeline: Timeline | None = None
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """End the watch, because the job has ended, and switch the node on again."""
        self._over.set()
        self._thread.join(30)
        self._watch.close()
        if self.timeline is not None:
            print(f"demo: {self._node} is switched on again, for the next run", flush=True)
            lifecycle.node_command(self._cluster.name, "up", int(self._node.rpartition("-")[2]))

    def _run(self) -> None:
        while not self._over.is_set():
            seen = self._watch.next(0.5)
            if seen is None:
                continue
            if self.timeline is not None:
                if self.timeline.observe(seen):
                    return
                continue
            self.starts.observe(seen)
            if seen.round >= AFTER * self._job.spec.rounds and seen.healthy:
                self._cut(seen)

    def _cut(self, seen: Observation) -> None:
        operators = asyncio.run(_pods(self._connection, None, "app.kubernetes.io/name=rljob"))
        runners, agents = self._runners(), bool(self._job.spec.environments)
        taken = {pod["spec"].get("nodeName") for pod in operators}
        nodes = [node for node in spare_nodes(seen) if node not in taken and (node in runners or not agents)]
        if not nodes:
            wanted = "rollout machines and a runner only" if agents else "only rollout machines"
            where = ", ".join(f"{pod.machine} on {pod.node}" for pod in seen.pods if pod.live)
            self.trouble = f"no node has {wanted}, so none was switched off: {where}"
            self._over.set()
            return
        self._node, machines = nodes[0], machines_on(seen, (nodes[0],))
        if agents and not self._wait_for_episodes(seen.of_role(ROLE_COORDINATOR)[0].name):
            self.trouble = "the job ended before episodes began, so no node was switched off"
            return
        lost = ", ".join((*machines, *runners.get(self._node, ())))
        print(f"demo: the power of {self._node} with {lost} is cut, after round {seen.round}", flush=True)
        self.timeline = Timeline(time.time(), machines, seen)
        lifecycle.node_command(self._cluster.name, "kill", int(self._node.rpartition("-")[2]))

    def _wait_for_episodes(self, pod: str) -> bool:
        """Wait until runners have just received episodes, so that some are in their middle. `pod`: the coordinator's.

        Returns False if the job ends before. Without episodes for some time it returns too: the loss of a node is shown
        in any case.
        """
        begins, end = Begins(), time.monotonic() + EPISODE_SECONDS
        while not self._over.is_set() and time.monotonic() < end:
            if begins.look(leased_of(asyncio.run(_metrics(self._connection, self._namespace, pod)))):
                return True
            time.sleep(EPISODE_PAUSE)
        return not self._over.is_set()

    def _runners(self) -> dict[str, list[str]]:
        """Return the runners of the job's environments by node."""
        found: dict[str, list[str]] = {}
        if self._job.spec.environments:
            labels = f"{LABEL_ENVIRONMENTS_OF}={self._job.name}"
            for pod in asyncio.run(_pods(self._connection, self._namespace, labels)):
                found.setdefault(pod["spec"].get("nodeName", ""), []).append(pod["metadata"]["name"])
        return found


class Begins:
    """Notes whether episodes have begun since the last look, by the number of those that runners have received."""

    def __init__(self) -> None:
        self._before: float | None = None

    def look(self, leased: float | None) -> bool:
        """Return whether more have begun. `leased`: their number; None if it is not known."""
        before, self._before = self._before, leased
        return before is not None and leased is not None and leased > before


def leased_of(metrics: str) -> float | None:
    """Read the number of leased attempts from the gateway's metrics; None if they do not have it."""
    lines = (line.split() for line in metrics.splitlines())
    return next((float(words[1]) for words in lines if words[:1] == [LEASED] and len(words) > 1), None)


async def _pods(connection: Connection, namespace: str | None, labels: str) -> Items:
    async with KubeClient(Credentials(connection)).opened() as kube:
        return await kube.list(POD, namespace, labels=labels)


async def _metrics(connection: Connection, namespace: str, pod: str) -> str:
    """Return the metrics of the gateway in a pod; nothing if it does not answer."""
    target = POD.path(namespace, f"{pod}:{GATEWAY_METRICS_PORT}", "proxy")
    async with KubeClient(Credentials(connection)).opened() as kube:
        try:
            return await kube.text(f"{target}/metrics")
        except (ApiError, Unreachable):
            return ""


def last_line(
    runtime: dict[str, Any], faults: int, verdict: dict[str, Any], recovered: float | None, resumed: int = 0
) -> str:
    """Return the result, for people and programs. `resumed`: episodes that the loss interrupted."""
    lost, twice = (verdict.get(name, "unknown") for name in ("lost", "duplicated"))
    seconds = "never" if recovered is None else f"{recovered:.1f}"
    return (
        f"demo: Complete rounds={runtime['round']} reward_first={runtime['rewardFirst']:.3f} "
        f"reward_last={runtime['rewardLast']:.3f} weight_version={runtime['weightVersion']} "
        f"faults={faults} {_episodes(verdict, resumed)}lost={lost} duplicated={twice} recovered_seconds={seconds}"
    )


def _episodes(verdict: dict[str, Any], resumed: int) -> str:
    """Return what the store proves of episodes: all trained ones, their turns, and tokens of another origin."""
    if (counts := verdict.get("episodes")) is None:
        return ""
    return f"episodes={counts['proved']} turns={counts['turns']} reencoded={counts['unproved']} resumed={resumed} "


def local_cluster(kubeconfig: str) -> settings.Cluster | None:
    """Return the local cluster with real nodes to which this kubeconfig belongs."""
    found = (one for one in settings.existing() if str(one.kubeconfig) == kubeconfig and one.kind == "real")
    return next(found, None)


def history(cluster: settings.Cluster, volume: str) -> dict[str, Any]:
    """Return what `rljob check` finds in the store on a volume."""
    return check_volume(cluster.volumes / volume)


def interrupted(cluster: settings.Cluster, volume: str) -> int:
    """Return how many attempts of episodes in the store on a volume went on with another runner, or failed."""
    return interrupted_episodes(cluster.volumes / volume)
