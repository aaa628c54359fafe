"""Injector: makes faults on a local cluster with real nodes, and undoes them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import datetime

from hack.chaos.observation import Observation
from hack.chaos.rows import machines_on
from hack.local_cluster import lifecycle, settings
from hack.local_cluster.process import Process
from hack.local_cluster.settings import ClusterError

from .agents import AgentFaults
from .in_pod import ACTOR
from .pods import LARGEST_FILE, Injected, NotPossible, nothing
from .switches import SwitchFaults

CONTROLLERS = "kube-controller-manager"
RENEWED_SECONDS = 15.0


def _is_after(text: str, moment: float) -> bool:
    """Return whether a time in a Lease's format is after `moment`; False for any other text."""
    try:
        return datetime.fromisoformat(text).timestamp() > moment
    except ValueError:
        return False


_CORRUPT = """
import json, pathlib, time
folders = sorted(one.parent for one in pathlib.Path("/var/lib/rljob/checkpoints").glob("step-*/COMPLETE"))
if len(folders) > 1:
    largest = max(folders[-1].iterdir(), key=lambda file: file.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(b"\\xff" * 4096)
print(json.dumps({"at": time.time(), "pids": folders[1:] and [1]}))
"""


class Injector(SwitchFaults, AgentFaults):
    """Injector for one job on the cluster of that name. It has a method for each row, with its name."""

    def inject(self, row: str, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Make the fault. Raises `NotPossible`, and then nothing was done."""
        make: Callable[..., Injected] = getattr(self, "_" + row.replace("-", "_"))
        return make(victims, seen)

    # --- nodes ---

    def _node_off(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        at = time.time()
        for node in victims:
            self._node("kill", node)
        return Injected(at, lambda: self._nodes_again("up", victims))

    def _cable_cut(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        at = time.time()
        for node in victims:
            self._node("cut", node)
        return Injected(at, lambda: self._nodes_again("join", victims))

    _many_nodes = _coordinator_cut = _cable_cut

    def _coordinator_deaf(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        at = time.time()
        for node in victims:
            self._node("deafen", node)
        return Injected(at, lambda: self._nodes_again("hear", victims))

    def _switch_node_off(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop a machine in its switch, so that the switch lasts, and then its node."""
        self._in_switch(seen, machines_on(seen, victims)[0], "writing", signal.SIGSTOP)
        return self._node_off(victims, seen)

    # --- the control plane ---

    def _operator_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        at, chosen = time.time(), ("-l", "app.kubernetes.io/name=rljob")
        self.kubectl("delete", "pods", *chosen, "--grace-period=0", "--force", "--wait=false", system=True)
        return Injected(at, nothing)

    def _api_paused(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return self._stopped("kube-apiserver")

    def _etcd_paused(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return self._stopped("etcd")

    # --- disks ---

    def _disk_full(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Simulate a full disk by a limit on the trainer's file sizes: a write then fails in the middle."""
        at = self._exec(seen, victims[0], ACTOR, "rank", "limit", victims[0], str(LARGEST_FILE))
        return Injected(at, lambda: self._unlimited(victims[0], seen))

    def _checkpoint_corrupt(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        self._exec(seen, victims[0], _CORRUPT)
        return self._trainer_killed(victims, seen)

    # --- details ---

    def _unlimited(self, machine: str, seen: Observation) -> None:
        self._exec(seen, machine, ACTOR, "rank", "unlimit", machine)

    def _stopped(self, component: str) -> Injected:
        """Stop a component, and the controllers until each kubelet has renewed its node's Lease.

        The controllers' timeouts here are shorter than the pause. They would take all nodes to be away and evict their
        pods, which takes 40 seconds in other clusters.
        """
        process, controllers = self._component(component), self._component(CONTROLLERS)
        at = time.time()
        for stopped in (controllers, process):
            stopped.signal(signal.SIGSTOP)
        going_on: list[float] = []

        def go_on() -> None:
            process.signal(signal.SIGCONT)
            if not going_on:
                going_on.append(time.time())
                self._until_renewed(going_on[0])
            controllers.signal(signal.SIGCONT)

        return Injected(at, go_on)

    def _component(self, name: str) -> Process:
        cluster = settings.load(self.cluster)
        process = lifecycle.daemons_of(cluster).get(name) if cluster is not None else None
        if process is None or not process.alive:
            raise NotPossible(f"{name} does not run")
        return process

    def _until_renewed(self, since: float) -> None:
        """Wait until each node's Lease is renewed after `since`, with a limit.

        A node that is off renews none.
        """
        shown = ("get", "leases", "-n", "kube-node-lease", "-o", "jsonpath={.items[*].spec.renewTime}")
        while time.time() < since + RENEWED_SECONDS:
            times = self.kubectl(*shown, check=False).split()
            if times and all(_is_after(text, since) for text in times):
                return
            time.sleep(0.5)

    def _node(self, action: str, node: str) -> None:
        lifecycle.node_command(self.cluster, action, settings.node_index(node))

    def _nodes_again(self, action: str, nodes: tuple[str, ...]) -> None:
        for node in nodes:
            try:
                self._node(action, node)
            except ClusterError as error:
                print(f"chaos: {node}: {error}", flush=True)
