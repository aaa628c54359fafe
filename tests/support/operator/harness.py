"""Helpers for the operator's tests: a job, pods, a kubelet that a test plays, and operators that die on demand."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rljob_api import RLJob, load
from rljob_api.constants import GROUP, VERSION
from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError
from rljob_kube.kubeconfig import load as load_kubeconfig
from rljob_kube.resources import POD, RLJOB, Json
from rljob_operator.app import Operator, Options
from rljob_operator.policies.base.config import Config
from tests.support.paths import ROOT

CRD = ROOT / "crds/rljob.yaml"
APPLY = "application/apply-patch+yaml"
NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)

SPEC: Json = {
    "rounds": 3,
    "model": {"source": "package://rljob/toy"},
    "data": {"prompts": {"reasoningGym": {"task": "basic_arithmetic"}}},
    "rewards": [{"name": "right", "kind": "Math"}],
    "rollout": {"machines": 2, "engine": "Reference"},
}


def manifest(name: str = "demo", namespace: str = "default", **changes: Any) -> Json:
    """An RLJob to apply; `changes` are merged into the spec, deeply."""
    metadata = {"name": name, "namespace": namespace}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "RLJob",
        "metadata": metadata,
        "spec": merged(SPEC, changes),
    }


def make_job(status: Mapping[str, Any] | None = None, *, generation: int = 1, **changes: Any) -> RLJob:
    """A job as the API server would show it."""
    document = manifest(**changes)
    document["metadata"] |= {"uid": "11111111-2222", "generation": generation, "resourceVersion": "7"}
    return load({**document, "status": dict(status or {})})


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """A deep merge; lists and scalars of `over` win."""
    result = copy.deepcopy(dict(base))
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return result


def five_minutes() -> Json:
    """A pod's tolerations on a stock cluster: evictions from a lost node come long after the operator's own steps."""
    keys = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    return {
        "spec": {
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300} for key in keys
            ]
        }
    }


class Server:
    """The admin's view of the private API server, and the kubelet's and the coordinator's part in it."""

    def __init__(self, kube: KubeClient, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    async def apply_job(self, name: str = "demo", manager: str = "kubectl", **changes: Any) -> Json:
        """Server-side apply, as GitOps tools do it."""
        body = manifest(name, self.namespace, **changes)
        return await patch(
            self.kube, RLJOB.path(self.namespace, name), body, "application/apply-patch+yaml", manager=manager
        )

    async def job(self, name: str = "demo") -> Json:
        return await self.kube.get(RLJOB, self.namespace, name)

    async def pods(self, name: str = "demo") -> dict[str, Json]:
        """Pods of a job that are not being deleted, by name."""
        items = await self.kube.list(POD, self.namespace, labels=f"rljob.dev/job={name}")
        return {i["metadata"]["name"]: i for i in items if not i["metadata"].get("deletionTimestamp")}

    async def set_pod(self, name: str, **status: Any) -> None:
        """The kubelet's report about one pod."""
        path = POD.path(self.namespace, name, "status")
        await patch(self.kube, path, {"status": status}, "application/merge-patch+json")

    async def start_pod(self, name: str, number: int) -> None:
        """Running and Ready, with an address."""
        await self.set_pod(
            name,
            phase="Running",
            podIP=f"10.9.{number // 250}.{number % 250 + 1}",
            conditions=[{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        )

    async def start_all(self, name: str = "demo") -> None:
        """Every pod that is still Pending becomes Ready."""
        for number, (pod, item) in enumerate(sorted((await self.pods(name)).items())):
            if item["status"].get("phase") == "Pending":
                await self.start_pod(pod, number + 10 * int(item["metadata"]["labels"]["rljob.dev/incarnation"]))

    async def fail_pod(self, name: str) -> None:
        """Its program ended with exit code 1."""
        ended: dict[str, object] = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
        ended |= {"ready": False, "restartCount": 0, "image": "i", "imageID": ""}
        await self.set_pod(
            name, phase="Failed", conditions=[{"type": "Ready", "status": "False"}], containerStatuses=[ended]
        )

    async def kill_pod(self, name: str) -> None:
        """`kubectl delete pod --now --force`."""
        await patch(self.kube, POD.path(self.namespace, name), {"gracePeriodSeconds": 0}, "DELETE")

    async def report(self, name: str = "demo", **runtime: Any) -> Json:
        """The coordinator's report: server-side apply of `status.runtime` alone."""
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "RLJob", "metadata": {"name": name}}
        body["status"] = {"runtime": runtime}
        path = RLJOB.path(self.namespace, name, "status")
        return await patch(self.kube, path, body, "application/apply-patch+yaml", manager="rljob-coordinator")

    async def events(self, name: str = "demo") -> dict[str, int]:
        """Reasons of the job's events with their counts."""
        items = (await self.kube._send("GET", f"/api/v1/namespaces/{self.namespace}/events", None, {}, {}))["items"]
        found: dict[str, int] = {}
        for item in items:
            if item["involvedObject"]["name"] == name:
                found[item["reason"]] = found.get(item["reason"], 0) + (item.get("count") or 1)
        return found

    async def until(self, check: Callable[[Json], object], name: str = "demo", seconds: float = 90.0) -> Json:
        """Wait until `check` of the job holds; returns the job."""
        job: Json = {}

        async def holds() -> bool:
            nonlocal job
            job = await self.job(name)
            return bool(check(job))

        await until(holds, seconds, lambda: f"job: {job.get('status')}")
        return job

    async def until_events(self, reasons: set[str], name: str = "demo", seconds: float = 90.0) -> None:
        """Wait until the job has events of these reasons; they follow the status that they tell of."""
        seen: dict[str, int] = {}

        async def holds() -> bool:
            nonlocal seen
            seen = await self.events(name)
            return reasons <= set(seen)

        await until(holds, seconds, lambda: f"events: {seen}, wanted: {sorted(reasons)}")

    async def until_pods(self, names: set[str], name: str = "demo", seconds: float = 90.0) -> None:
        """Wait until exactly these pods are there."""
        seen: set[str] = set()

        async def holds() -> bool:
            nonlocal seen
            seen = set(await self.pods(name))
            return seen == names

        await until(holds, seconds, lambda: f"pods: {sorted(seen)}, wanted: {sorted(names)}")

    async def until_members(self, names: set[str], name: str = "demo") -> None:
        """Wait until exactly these pods are there and in the status: one that goes before that was never counted, and
        comes back under its own name."""
        await self.until_pods(names, name)
        await self.until(lambda job: {_pod_of(name, member) for member in _members(job)} == names, name)


def _members(job: Json) -> list[Json]:
    return (job.get("status") or {}).get("members") or []


def _pod_of(name: str, member: Json) -> str:
    return f"{name}-{member['machine']}-{member['incarnation']}"


def condition(job: Json, type_: str) -> str | None:
    """`True/Reason` of a condition, or None."""
    for found in (job.get("status") or {}).get("conditions") or []:
        if found["type"] == type_:
            return f"{found['status']}/{found['reason']}"
    return None


async def until(holds: Callable[[], Any], seconds: float = 90.0, told: Callable[[], str] = lambda: "") -> None:
    """Poll an async predicate."""
    end = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < end, f"not in {seconds} s; {told()}"
        await asyncio.sleep(0.03)


async def patch(kube: KubeClient, path: str, body: Json, content_type: str, manager: str = "test") -> Json:
    """A raw request, by content type; DELETE for a deletion."""
    import json

    method = "DELETE" if content_type == "DELETE" else "PATCH"
    kind = "application/json" if method == "DELETE" else content_type
    params = {"fieldManager": manager, "force": "true"} if "apply" in content_type else {}
    return await kube._send(method, path, json.dumps(body).encode(), params, {"Content-Type": kind})


class Died(BaseException):
    """The operator's process was killed here."""


class FaultyKube(KubeClient):
    """A client with a hook before and after each request. `before(n, method, path)` and `after(...)` may raise."""

    before: Callable[[int, str, str], None] = staticmethod(lambda n, method, path: None)
    after: Callable[[int, str, str], None] = staticmethod(lambda n, method, path: None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent: list[tuple[str, str]] = []

    async def _send(self, method: str, path: str, *args: Any) -> Json:
        number = len(self.sent)
        self.sent.append((method, path))
        self.before(number, method, path)
        answer = await super()._send(method, path, *args)
        self.after(number, method, path)
        return answer


async def make_namespace(kube: KubeClient, name: str) -> None:
    """A namespace with the account that its controller would make."""
    headers = {"Content-Type": "application/json"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await kube._send("POST", "/api/v1/namespaces", json.dumps(body).encode(), {}, headers)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    path = f"/api/v1/namespaces/{name}/serviceaccounts"
    await kube._send("POST", path, json.dumps(account).encode(), {}, headers)


@contextlib.asynccontextmanager
async def admin(connection: Connection) -> AsyncIterator[KubeClient]:
    async with KubeClient(Credentials(connection)).opened() as kube:
        yield kube


def options(namespace: str, **changes: Any) -> Options:
    """An operator for one test: its own namespace, no HTTP port, no leader election unless asked for."""
    defaults: dict[str, Any] = {
        "config": Config(runtime_image="example/runtime:1"),
        "namespaces": (namespace,),
        "leader_elect": False,
        "lease_namespace": namespace,
        "health_port": None,
    }
    return Options(**{**defaults, **changes})


@contextlib.asynccontextmanager
async def running(
    connection: Connection, found: Options, make_kube: Callable[..., KubeClient] = KubeClient
) -> AsyncIterator[Operator]:
    """An operator in this process; it must not have died when the context ends."""
    operator = Operator(found, connection=connection, make_kube=make_kube)
    stop = asyncio.Event()
    task = asyncio.create_task(operator.run(stop))
    ready = asyncio.create_task(operator.ready.wait())
    try:
        if not found.leader_elect:
            await asyncio.wait({task, ready}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            assert operator.ready.is_set(), "the operator did not start"
        yield operator
    finally:
        ready.cancel()
        stop.set()
        await asyncio.wait({task}, timeout=30)
        if not task.done():
            task.cancel()
    task.result()


async def gone(kube: KubeClient, resource: Any, namespace: str, name: str) -> bool:
    """Whether the object is not there (any more)."""
    try:
        await kube.get(resource, namespace, name)
    except ApiError as error:
        return error.not_found
    return False


def connect(kubeconfig: Path, crd: dict[str, Any]) -> Connection:
    """Return the admin's connection to an API server, with that CRD installed."""
    found = load_kubeconfig([Path(kubeconfig)])
    asyncio.run(_install(found, crd))
    return found


async def _install(connection: Connection, crd: dict[str, Any]) -> None:
    async with admin(connection) as kube:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        # An apply, because the tests of the API share this server and may have been first.
        params = {"fieldManager": "operator-tests", "force": "true"}
        await kube._send("PATCH", path, json.dumps(crd).encode(), params, {"Content-Type": APPLY})

        async def served() -> bool:
            found = await kube._send("GET", path, None, {}, {})
            conditions = found.get("status", {}).get("conditions") or []
            if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return False
            # The part of the server that answers for RLJobs learns of the condition as others do: a moment later.
            try:
                await kube.list(RLJOB, "default")
            except ApiError as error:
                if not error.not_found:
                    raise
                return False
            return True

        await until(served)
