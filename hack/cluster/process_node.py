"""A Kubernetes node whose containers are processes of this machine: no root, no images, no volumes.

    python -m hack.cluster.process_node --kubeconfig FILE --node NAME --index N --prefix 10.246 --state DIR

Pods get addresses <prefix>.<N>.x on this machine. Two processes: the agent, and a guardian above it that adopts
whatever pods leave behind and ends it when the agent ends, however that happens.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import concurrent.futures
import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import kube
from .kube import Api, ApiError
from .process import Process
from .process_pod import Host, PodRunner, now

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_HEARTBEAT = 2.0
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``."""
    found: list[int] = []
    pending = [pid]
    while pending:
        at = pending.pop()
        for task in Path(f"/proc/{at}/task").glob("*/children"):
            try:
                children = [int(word) for word in task.read_text().split()]
            except OSError:  # gone meanwhile
                continue
            found += children
            pending += children
    return found


def guard(agent: int) -> int:
    """Wait for the agent, then kill all that is left below this process; the agent's exit status."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGTERM))
    code = 0
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            code = os.waitstatus_to_exitcode(status)
            break
    while left := descendants(os.getpid()):
        for process in filter(None, map(Process.of, left)):
            process.signal(signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    return abs(code)


class Addresses:
    """Pod addresses of one node. One that was given back is used again last."""

    def __init__(self, prefix: str, index: int) -> None:
        self._free = collections.deque(f"{prefix}.{index}.{number}" for number in range(2, 255))

    def take(self) -> str:
        """Raises IndexError when all are in use: the node's capacity is below their number."""
        return self._free.popleft()

    def give_back(self, address: str) -> None:
        self._free.append(address)


class Agent:
    """The node's kubelet, so to speak."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.name: str = args.node
        self.index: int = args.index
        self.api = Api(args.kubeconfig)
        self.address = f"{args.prefix}.0.{10 + args.index}"
        path = os.environ.get("RLJOB_POD_PATH", os.environ.get("PATH", "/usr/bin:/bin"))
        config = json.loads(Path(args.kubeconfig).read_text())
        self.host = Host(self.api, self.address, args.state / "pods", path, config)
        self._addresses = Addresses(args.prefix, args.index)
        self._resources = {"cpu": "8", "memory": "16Gi", "pods": "240", "ephemeral-storage": "50Gi"}
        self._pods: dict[str, PodRunner] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps no strong reference
        self._events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    @property
    def selector(self) -> str:
        return f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}"

    def register(self) -> None:
        """Make the Node. What an earlier life left under the name stays."""
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/zone": f"zone-{self.index}",
            "rljob.dev/process-node": "true",
        }
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": labels}, "spec": {}}
        try:
            self.api.call("POST", "/api/v1/nodes", node)
        except ApiError as error:
            if error.status != 409:
                raise

    def heartbeat(self, started: str, full: bool) -> None:
        """Renew the Lease; ``full`` also tells the node's status."""
        if full:
            self.api.call(
                "PATCH", f"/api/v1/nodes/{self.name}/status", {"status": self.status(started)}, kube.STRATEGIC
            )
        renew = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 8, "renewTime": renew}
        try:
            self.api.call("PATCH", f"{_LEASES}/{self.name}", {"spec": spec}, kube.MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
            meta = {"name": self.name}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
            self.api.call("POST", _LEASES, lease)

    def status(self, started: str) -> Mapping[str, Any]:
        healthy = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
        conditions = [
            {
                "type": kind,
                "status": value,
                "reason": "ProcessNode",
                "message": "pods are processes of this machine",
                "lastHeartbeatTime": now(),
                "lastTransitionTime": started,
            }
            for kind, value in healthy.items()
        ]
        info = dict.fromkeys(("machineID", "systemUUID", "bootID"), self.name)
        info |= {"kernelVersion": os.uname().release, "osImage": "process node", "operatingSystem": "linux"}
        info |= {"containerRuntimeVersion": "process://1", "kubeletVersion": "v1.20.2", "kubeProxyVersion": ""}
        info |= {"architecture": os.uname().machine}
        addresses = [{"type": "InternalIP", "address": self.address}, {"type": "Hostname", "address": self.name}]
        return {
            "capacity": self._resources,
            "allocatable": self._resources,
            "conditions": conditions,
            "addresses": addresses,
            "nodeInfo": info,
        }

    def beat_forever(self) -> None:
        """A thread of its own, so that many pods cannot make the node look dead."""
        started, beats, registered = now(), 0, False
        while True:
            try:
                if not registered:
                    self.register()
                    registered = True
                self.heartbeat(started, full=beats % 5 == 0)
                beats += 1
            except ApiError as error:
                print(f"heartbeat: {error}", flush=True)
            time.sleep(_HEARTBEAT if registered else _HEARTBEAT / 10)

    def watch_forever(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread: lists and watches this node's pods and hands what it sees to the loop."""

        def tell(kind: str, value: Any) -> None:
            loop.call_soon_threadsafe(self._events.put_nowait, (kind, value))

        while True:
            try:
                found = self.api.get(self.selector)
                tell("LIST", found["items"])
                for event in self.api.watch(self.selector, found["metadata"]["resourceVersion"]):
                    tell(event["type"], event["object"])
            except ApiError as error:
                print(f"watch: {error}", flush=True)
                time.sleep(0.5)

    async def serve(self) -> None:
        """Until SIGTERM, which is a power-off: no pod is told."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(16))
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        threading.Thread(target=self.beat_forever, daemon=True).start()
        threading.Thread(target=self.watch_forever, args=(loop,), daemon=True).start()
        handler = asyncio.create_task(self._handle_events())
        handler.add_done_callback(self._ended)
        await stop.wait()
        # At once: the guardian ends the pods, and the threads may be waiting for the API server.
        os._exit(0)

    async def _handle_events(self) -> None:
        while True:
            kind, value = await self._events.get()
            if kind == "LIST":
                present = {pod["metadata"]["uid"] for pod in value}
                for uid in set(self._pods) - present:
                    self._pods[uid].stop(0)
                for pod in value:
                    self.see(pod)
            elif kind == "DELETED":
                if runner := self._pods.get(value["metadata"]["uid"]):
                    runner.stop(0)
            else:
                self.see(value)

    def see(self, pod: Mapping[str, Any]) -> None:
        """Start a pod that is new here; end one that is to be deleted."""
        meta = pod["metadata"]
        runner = self._pods.get(meta["uid"])
        finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if runner is None and (not finished or meta.get("deletionTimestamp")):
            runner = PodRunner(self.host, pod, self._addresses.take())
            self._pods[meta["uid"]] = runner
            task = asyncio.create_task(self._run(runner))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        if runner is not None and meta.get("deletionTimestamp"):
            runner.stop(float(meta.get("deletionGracePeriodSeconds", 30)))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if error := task.exception():
            traceback.print_exception(error)

    async def _run(self, runner: PodRunner) -> None:
        await runner.run()
        self._pods.pop(runner.uid, None)
        self._addresses.give_back(runner.address)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A Kubernetes node whose containers are local processes.")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--prefix", required=True, help="first two bytes of all addresses")
    parser.add_argument("--state", type=Path, required=True)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = parse(argv)
    prctl(_SET_CHILD_SUBREAPER, 1)
    agent = os.fork()
    if agent:
        return guard(agent)
    prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if sys.version_info < (3, 12):
        # The default there is a thread for every process.
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    asyncio.run(Agent(args).serve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
