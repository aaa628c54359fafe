"""Injector: makes faults on a local cluster with real nodes, and undoes them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from hack.local_cluster import lifecycle, settings
from hack.local_cluster.process import Process
from hack.local_cluster.settings import ClusterError
from rljob_api.constants import LABEL_ENVIRONMENTS_OF, SHM_DIR

from .in_switch import DAMAGE_KV, DAMAGED_SECONDS, FOUND, IN_SWITCH, SWITCH_SECONDS, TEXT
from .job import JOB
from .observation import Observation
from .rows import machines_on

SYSTEM_NAMESPACE = "rljob-system"
Undo = Callable[[], None]
CONTROLLERS = "kube-controller-manager"
RENEWED_SECONDS = 15.0
TOLD_SECONDS = 1.0
"""Time in which the coordinator sees that its job is suspended."""


class NotPossible(Exception):
    """The fault is not possible now; the message gives the reason."""


@dataclass(frozen=True)
class Injected:
    """A fault.

    `at`: its time, by the clock of all nodes. `undo` ends it and is harmless if there is nothing to undo.
    """

    at: float
    undo: Undo


def _nothing() -> None:
    pass


def _is_after(text: str, moment: float) -> bool:
    """Return whether a time in a Lease's format is after `moment`; False for any other text."""
    try:
        return datetime.fromisoformat(text).timestamp() > moment
    except ValueError:
        return False


_ACTOR = (
    FOUND
    + """
if what == "limit" or what == "unlimit":
    for pid in found:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (int(sys.argv[4]) if what == "limit" else hard, hard))
else:
    for pid in found[:1]:
        os.kill(pid, int(what))
print(json.dumps({"at": time.time(), "pids": found}))
"""
)
"""Runs in a pod of the job: signals one of its actors, or limits the size of the files that it writes."""

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

_ALL = "import json, os, time; print(json.dumps({'at': time.time(), 'pids': [1]}), flush=True); os.kill(-1, 9)"
"""Kills all processes of a pod whose containers share a process namespace: its program is not the first process
there."""

_FIND = f"""{TEXT}
def running(words):
    return [int(one.name) for one in pathlib.Path("/proc").glob("[0-9]*") if words in text(one / "cmdline")]
"""
"""Begins a program that finds the processes of its pod by their command lines, in which words end with NUL."""

KILL_GATEWAY = f"""{_FIND}
found = running("rljob_runtime.entrypoints\\0gateway\\0--config")
for pid in found:
    os.kill(pid, 9)
print(json.dumps({{"at": time.time(), "pids": found}}))
"""
"""Kills the gateway of agents, from another container of its pod."""

HANG_RUNNER = f"""{_FIND}
found = running("-m\\0" + sys.argv[2] + "\\0")
for pid in found:
    os.kill(pid, signal.SIGSTOP)
print(json.dumps({{"at": time.time(), "pids": found}}), flush=True)
if found and continues_alone():
    time.sleep(float(sys.argv[1]))
    for pid in found:
        os.kill(pid, signal.SIGCONT)
"""
"""Stops a runner, which runs that module, from within its pod, and lets it go on after some seconds."""

RUNNER = "rljob_env"
HUNG_SECONDS = 40.0
"""Longer than a runner may be silent: another one has its episodes when it goes on with them."""

LARGEST_FILE = 64 << 10
"""File size limit in bytes while a disk is said to be full."""


class Injector:
    """Injector for one job on the cluster of that name."""

    def __init__(self, cluster: str, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def inject(self, row: str, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Make the fault. Raises `NotPossible`, and then nothing was done."""
        make: Callable[..., Injected] = getattr(self, "_" + row.replace("-", "_"))
        return make(victims, seen)

    # --- processes on rollout machines ---

    def _replica_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._signal(seen, victims[0], "replica", signal.SIGKILL), _nothing)

    _replica_again = _replica_killed

    def _relay_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._signal(seen, victims[0], "relay", signal.SIGKILL), _nothing)

    def _replica_hung(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._signal(seen, victims[0], "replica", signal.SIGSTOP), _nothing)

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

    # --- trainer and coordinator ---

    def _trainer_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._signal(seen, victims[0], "rank", signal.SIGKILL), _nothing)

    def _coordinator_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._exec(seen, victims[0], _ALL), _nothing)

    def _trainer_deleted(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        pod = seen.pod_of(victims[0])
        if pod is None:
            raise NotPossible(f"{victims[0]} has no pod")
        at = time.time()
        self.kubectl("delete", "pod", pod.name, "--grace-period=0", "--force", "--wait=false")
        return Injected(at, _nothing)

    _coordinator_deleted = _trainer_deleted

    # --- agents ---

    def _gateway_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._exec(seen, victims[0], KILL_GATEWAY), _nothing)

    def _runner_deleted(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        runner, at = self._runners()[0], time.time()
        self.kubectl("delete", runner, "--grace-period=0", "--force", "--wait=false")
        return Injected(at, _nothing)

    def _runner_hung(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop a runner. It goes on by itself, during later faults: the campaign does not wait for it."""
        return Injected(self._exec_in(self._runners()[-1], HANG_RUNNER, str(HUNG_SECONDS), RUNNER), _nothing)

    def _runners(self) -> list[str]:
        chosen = ("-l", LABEL_ENVIRONMENTS_OF, "--field-selector=status.phase=Running")
        runners = self.kubectl("get", "pods", *chosen, "-o", "name").split()
        if not runners:
            raise NotPossible("the job has no runner")
        return runners

    # --- the control plane ---

    def _operator_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        at, chosen = time.time(), ("-l", "app.kubernetes.io/name=rljob")
        self.kubectl("delete", "pods", *chosen, "--grace-period=0", "--force", "--wait=false", system=True)
        return Injected(at, _nothing)

    def _api_paused(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return self._stopped("kube-apiserver")

    def _etcd_paused(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return self._stopped("etcd")

    # --- disks ---

    def _disk_full(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Simulate a full disk by a limit on the trainer's file sizes: a write then fails in the middle."""
        at = self._exec(seen, victims[0], _ACTOR, "rank", "limit", victims[0], str(LARGEST_FILE))
        return Injected(at, lambda: self._unlimited(victims[0], seen))

    def _checkpoint_corrupt(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        self._exec(seen, victims[0], _CORRUPT)
        return self._trainer_killed(victims, seen)

    # --- switches of the tensor parallel size ---

    def _switch_killed_writing(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._in_switch(seen, victims[0], "writing", signal.SIGKILL), _nothing)

    def _switch_killed_loading(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._in_switch(seen, victims[0], "loading", signal.SIGKILL), _nothing)

    def _switch_killed_reading(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._in_switch(seen, victims[0], "reading", signal.SIGKILL), _nothing)

    def _switch_hung(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._in_switch(seen, victims[0], "loading", signal.SIGSTOP), _nothing)

    def _switch_relay_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._in_switch(seen, victims[0], "loading", signal.SIGKILL, "relay"), _nothing)

    def _switch_coordinator_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop a machine in its switch until the coordinator is killed."""
        machine = self._rollout_machine(seen)
        self._in_switch(seen, machine, "writing", signal.SIGSTOP)
        try:
            return self._coordinator_killed(victims, seen)
        finally:
            self._let_go_on(seen, machine)

    def _switch_suspended(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop a machine in its switch until the coordinator knows that the job is suspended."""
        machine = self._rollout_machine(seen)
        at = self._in_switch(seen, machine, "writing", signal.SIGSTOP)
        try:
            self._suspend(True)
            time.sleep(TOLD_SECONDS)
        except BaseException:
            with suppress(NotPossible):
                self._suspend(False)
            raise
        finally:
            self._let_go_on(seen, machine)
        return Injected(at, lambda: self._suspend(False))

    def _switch_kv_damaged(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Damage what all rollout machines write. It ends by itself."""
        more, machines = (SHM_DIR, str(DAMAGED_SECONDS)), [pod.machine for pod in seen.of_role("rollout")]
        return Injected(min(self._exec(seen, one, DAMAGE_KV, one, *more) for one in machines), _nothing)

    def _switch_node_off(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop a machine in its switch, so that the switch lasts, and then its node."""
        self._in_switch(seen, machines_on(seen, victims)[0], "writing", signal.SIGSTOP)
        return self._node_off(victims, seen)

    def _shared_memory_full(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Simulate full shared memory on all rollout machines, as `_disk_full` does."""
        machines = [pod.machine for pod in seen.of_role("rollout")]
        at = min(self._exec(seen, one, _ACTOR, "replica", "limit", one, str(LARGEST_FILE)) for one in machines)

        def unlimited() -> None:
            for one in machines:
                self._exec(seen, one, _ACTOR, "replica", "unlimit", one)

        return Injected(at, unlimited)

    # --- details ---

    def _in_switch(self, seen: Observation, machine: str, moment: str, number: int, part: str = "replica") -> float:
        more = SHM_DIR, str(SWITCH_SECONDS), str(int(number))
        return self._exec(seen, machine, IN_SWITCH, part, moment, machine, *more)

    def _let_go_on(self, seen: Observation, machine: str) -> None:
        with suppress(NotPossible):  # The job was hit meanwhile, and may have ended the process.
            self._signal(seen, machine, "replica", signal.SIGCONT)

    def _rollout_machine(self, seen: Observation) -> str:
        machines = [pod.machine for pod in seen.of_role("rollout") if pod.ready]
        if not machines:
            raise NotPossible("no rollout machine is ready")
        return machines[0]

    def _suspend(self, suspended: bool) -> None:
        self.kubectl("patch", "rljob", JOB, "--type=merge", "-p", json.dumps({"spec": {"suspend": suspended}}))

    def _unlimited(self, machine: str, seen: Observation) -> None:
        self._exec(seen, machine, _ACTOR, "rank", "unlimit", machine)

    def _signal(self, seen: Observation, machine: str, part: str, number: int) -> float:
        return self._exec(seen, machine, _ACTOR, part, str(int(number)), machine)

    def _exec(self, seen: Observation, machine: str, script: str, *arguments: str) -> float:
        """Run a script in a machine's pod; return the time of its work.

        Raises `NotPossible` if it found nothing to do.
        """
        pod = seen.pod_of(machine)
        if pod is None:
            raise NotPossible(f"{machine} has no pod")
        return self._exec_in(pod.name, script, *arguments)

    def _exec_in(self, pod: str, script: str, *arguments: str) -> float:
        """Run a script in a pod; return the time of its work. Raises `NotPossible` if it found nothing to do."""
        inside = ("exec", pod, "-c", "main", "--", "python", "-c", script, *arguments)
        answer = self.kubectl(*inside, check=False).strip().splitlines()
        found = [json.loads(line) for line in answer if line.startswith("{")]
        if not found or not found[0]["pids"]:
            raise NotPossible(f"{pod}: {answer[-1] if answer else 'no answer'}")
        return float(found[0]["at"])

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

    def kubectl(self, *args: str, system: bool = False, check: bool = True) -> str:
        """Run kubectl in the job's namespace, or in the operator's. Raises `NotPossible` with its error."""
        namespace = SYSTEM_NAMESPACE if system else self.namespace
        try:
            done = subprocess.run(["kubectl", "-n", namespace, *args], capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            raise NotPossible(f"kubectl {args[0]} did not return") from None
        if check and done.returncode:
            raise NotPossible(f"kubectl {args[0]}: {done.stderr.strip()}")
        return done.stdout + ("" if check else done.stderr)
