"""One pod on a process node: its containers as local processes, their probes, restarts and end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from . import kube, podspec, probes
from .kube import Api, ApiError
from .pki import write_private
from .podspec import ContainerState, Object, PodError, Tally, timestamp
from .process import carrying, wait_gone

POD_VARIABLE = "RLJOB_CLUSTER_POD"
_RETRY = 2.0
_TOKEN_ATTEMPTS = 8
_ORPHAN_SECONDS = 10.0


@dataclass(frozen=True)
class Host:
    """What pods need from their node."""

    api: Api
    address: str
    pods: Path
    path: str
    server_config: Mapping[str, Any]
    """The node's kubeconfig; a pod gets one like it with its service account's token."""

    async def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        return await asyncio.to_thread(self.api.call, method, path, body, kind)


def now() -> str:
    return timestamp(time.time())


class Container:
    """One container of a pod: started, watched, started again as the policy says."""

    def __init__(self, pod: PodRunner, spec: Object, policy: str) -> None:
        self.pod, self.spec, self.policy = pod, spec, policy
        self.status = ContainerState(spec["name"], spec["image"], podspec.waiting("ContainerCreating"), {})
        self.process: asyncio.subprocess.Process | None = None

    async def run(self) -> int:
        """Until it ends for good; its exit code. Cancelled when the pod stops."""
        while True:
            code = await self._once()
            if not podspec.restarts(self.policy, code):
                return code
            self.status.restarts += 1
            delay = podspec.backoff(self.status.restarts)
            self.status.last, self.status.state = self.status.state, podspec.waiting("CrashLoopBackOff")
            self.pod.changed.set()
            await asyncio.sleep(delay)

    async def _once(self) -> int:
        while True:
            try:
                env = await self.pod.environment(self.spec)
                self.process = await self._spawn(env)
                break
            except PodError as error:
                self.status.state = podspec.waiting(error.reason, str(error))
                self.pod.changed.set()
                await asyncio.sleep(_RETRY)
        started = now()
        self.status.state = {"running": {"startedAt": started}}
        self.status.started = "startupProbe" not in self.spec
        self.status.ready = self.status.started and "readinessProbe" not in self.spec
        self.pod.changed.set()
        probing = asyncio.create_task(self._probes(env))
        try:
            code = await self.process.wait()
        finally:
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing
        self._signal(signal.SIGKILL)  # what it left in its process group ends with it
        code = 128 - code if code < 0 else code
        self.status.state = podspec.terminated(code, started, now())
        self.status.ready = self.status.started = False
        self.pod.changed.set()
        return code

    async def _spawn(self, env: dict[str, str]) -> asyncio.subprocess.Process:
        argv = podspec.command(self.spec, env)
        if not shutil.which(argv[0], path=env.get("PATH")):
            raise PodError("CreateContainerError", f"{argv[0]}: no such executable in {env.get('PATH')}")
        workdir = self.spec.get("workingDir") or ""
        with self._log() as log:
            return await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", "--", *argv),
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=workdir if os.path.isdir(workdir) else self.pod.folder,
            )

    def _log(self) -> IO[bytes]:
        return open(self.pod.folder / f"{self.spec['name']}.log", "ab")

    async def _probes(self, env: Mapping[str, str]) -> None:
        if probe := self.spec.get("startupProbe"):
            await self._probe(probe, env, self._startup)
            if not self.status.started:
                return
        loops = []
        if probe := self.spec.get("readinessProbe"):
            loops.append(self._probe(probe, env, self._readiness))
        else:
            self._readiness(True)
        if probe := self.spec.get("livenessProbe"):
            loops.append(self._probe(probe, env, self._liveness))
        await asyncio.gather(*loops)

    async def _probe(self, probe: Object, env: Mapping[str, str], verdict: Callable[[bool], bool]) -> None:
        """Probe until ``verdict`` returns False, which says that the probe has done its work."""
        tally = Tally.of(probe)
        await asyncio.sleep(float(probe.get("initialDelaySeconds", 0)))
        while True:
            result = tally.record(await probes.check(probe, self.spec, self.pod.address, env))
            if result is not None and not verdict(result):
                return
            await asyncio.sleep(float(probe.get("periodSeconds", 10)))

    def _startup(self, ok: bool) -> bool:
        self.status.started = ok
        if not ok:
            self.kill_slowly()
        self.pod.changed.set()
        return False

    def _readiness(self, ok: bool) -> bool:
        if self.status.ready != ok:
            self.status.ready = ok
            self.pod.changed.set()
        return True

    def _liveness(self, ok: bool) -> bool:
        if not ok:
            self.kill_slowly()
        return ok

    def kill_slowly(self) -> None:
        """SIGTERM now, SIGKILL after the pod's grace period."""
        self.terminate()
        grace = float(self.pod.spec.get("terminationGracePeriodSeconds", 30))
        asyncio.get_running_loop().call_later(grace, self.kill, self.process)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self, process: asyncio.subprocess.Process | None = None) -> None:
        if process is None or process is self.process:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


class PodRunner:
    """A pod from its binding to the node until its object is gone."""

    def __init__(self, host: Host, pod: Object, address: str) -> None:
        self.host, self.pod, self.address = host, pod, address
        self.meta, self.spec = pod["metadata"], pod["spec"]
        self.uid: str = self.meta["uid"]
        self.folder = host.pods / f"{self.meta['namespace']}_{self.meta['name']}_{self.uid}"
        self.changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._grace = 30.0
        self._init_done = not self.spec.get("initContainers")
        self._init_failed = False
        self._conditions: list[dict[str, Any]] = list(pod.get("status", {}).get("conditions") or [])
        self._started = now()
        self._reported = ""
        policy = self.spec.get("restartPolicy", "Always")
        init_policy = "OnFailure" if policy == "Always" else policy
        self.init = [Container(self, c, init_policy) for c in self.spec.get("initContainers") or []]
        self.containers = [Container(self, c, policy) for c in self.spec["containers"]]

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.meta['namespace']}/pods/{self.meta['name']}"

    def stop(self, grace: float) -> None:
        """End the pod within ``grace`` seconds; a shorter later grace wins."""
        self._grace = min(self._grace, grace) if self._stopped.is_set() else grace
        self._stopped.set()

    async def environment(self, container: Object) -> dict[str, str]:
        """All variables of a container. Raises PodError when something it refers to is missing."""

        def data(kind: str, name: str) -> Mapping[str, str] | None:
            found = self.host.api.find(f"/api/v1/namespaces/{self.meta['namespace']}/{kind}/{name}")
            if found is None:
                return None
            values = found.get("data") or {}
            return {k: base64.b64decode(v).decode() for k, v in values.items()} if kind == "secrets" else values

        def of_field(path: str) -> str:
            return podspec.field(self.pod, path, self.address, self.host.address)

        base = {
            "PATH": self.host.path,
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "HOSTNAME": self.meta["name"],
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            **{name: value for name, value in os.environ.items() if name.startswith("RLJOB_CLUSTER_")},
            POD_VARIABLE: self.uid,
        }
        if (self.folder / "kubeconfig").exists():
            base["KUBECONFIG"] = str(self.folder / "kubeconfig")
        try:
            own = await asyncio.to_thread(podspec.environment, container, of_field, data)
        except ApiError as error:
            raise PodError("CreateContainerConfigError", str(error)) from error
        return {**base, **own}

    async def run(self) -> None:
        """Everything, including the removal of the pod's object. Returns when nothing of the pod is left."""
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        reporter = asyncio.create_task(self._report_changes())
        work = asyncio.create_task(self._work())
        await self._stopped.wait()
        work.cancel()  # first: nothing is to be started any more
        await asyncio.gather(work, return_exceptions=True)
        await self._end_containers()
        reporter.cancel()
        await asyncio.gather(reporter, return_exceptions=True)
        await self._remove_object()
        await asyncio.to_thread(shutil.rmtree, self.folder, True)

    async def _work(self) -> None:
        if self.spec.get("automountServiceAccountToken") is not False:
            await self._write_kubeconfig()
        for container in self.init:
            if await container.run() != 0:
                self._init_failed = True
                self.changed.set()
                return
        self._init_done = True
        await asyncio.gather(*(c.run() for c in self.containers))

    async def _write_kubeconfig(self) -> None:
        """Process pods mount nothing, so the service account comes as a kubeconfig in ``$KUBECONFIG``."""
        account = self.spec.get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{self.meta['namespace']}/serviceaccounts/{account}/token"
        bound = {"kind": "Pod", "apiVersion": "v1", "name": self.meta["name"], "uid": self.uid}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        for attempt in range(1, _TOKEN_ATTEMPTS + 1):
            try:
                made = await self.host.call("POST", path, {**request, "spec": {"boundObjectRef": bound}})
                break
            except ApiError as error:
                # At first the node authorizer may not have seen yet that the pod is bound to this node.
                if attempt == _TOKEN_ATTEMPTS:
                    print(f"{self.path}: no token for {account}: {error}", flush=True)
                    return
                await asyncio.sleep(0.1 * attempt)
        user = {"name": account, "user": {"token": made["status"]["token"]}}
        context = {"cluster": "rljob", "user": account, "namespace": self.meta["namespace"]}
        contexts = [{"name": "rljob", "context": context}]
        config = {**self.host.server_config, "users": [user], "contexts": contexts}
        write_private(self.folder / "kubeconfig", json.dumps(config))

    async def _end_containers(self) -> None:
        live = [c for c in (*self.init, *self.containers) if c.process and c.process.returncode is None]
        for container in live:
            container.terminate()
        end = time.monotonic() + self._grace
        while any(c.process and c.process.returncode is None for c in live) and time.monotonic() < end:
            end = min(end, time.monotonic() + self._grace)
            await asyncio.sleep(0.02)
        for container in live:
            container.kill()
        await asyncio.gather(*(c.process.wait() for c in live if c.process))
        if _orphans():
            orphans = await asyncio.to_thread(carrying, POD_VARIABLE, self.uid)
            for process in orphans:
                process.signal(signal.SIGKILL)
            await asyncio.to_thread(wait_gone, orphans, _ORPHAN_SECONDS)

    async def _report_changes(self) -> None:
        await self._retry(self._report)
        while True:
            await self.changed.wait()
            self.changed.clear()
            await self._retry(self._report)

    async def _retry(self, act: Callable[[], Awaitable[None]]) -> None:
        """Until it works, or the pod's object is gone or another one (404, 409)."""
        while True:
            try:
                return await act()
            except ApiError as error:
                if error.status in (404, 409):
                    return self.stop(0)
                print(f"{self.path}: {error}", flush=True)
                await asyncio.sleep(1)

    def status(self) -> dict[str, Any]:
        states = [c.status for c in self.containers]
        policy = self.spec.get("restartPolicy", "Always")
        phase = "Failed" if self._init_failed else podspec.phase(self._init_done, states, policy)
        ready = phase == "Running" and all(s.ready for s in states)
        self._conditions = podspec.conditions(self._init_done, ready, self._conditions, now())
        return {
            "phase": phase,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "hostIP": self.host.address,
            "startTime": self._started,
            "conditions": self._conditions,
            "containerStatuses": [s.report(self.uid) for s in states],
            "initContainerStatuses": [c.status.report(self.uid) for c in self.init],
        }

    async def _report(self) -> None:
        status = self.status()
        text = json.dumps(status)
        if text != self._reported:
            body = {"metadata": {"uid": self.uid}, "status": status}
            await self.host.call("PATCH", f"{self.path}/status", body, kube.MERGE)
            self._reported = text

    async def _remove_object(self) -> None:
        async def remove() -> None:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
            await self.host.call("DELETE", self.path, options)

        await self._retry(remove)


def _orphans() -> bool:
    """Whether the node's guardian (the parent) has children besides this process: then something daemonised."""
    parent = os.getppid()
    try:
        return len(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()) > 1
    except OSError:  # not every kernel has the file; then look
        return True
