"""Operator benchmark: the operator against a real API server, each figure beside a baseline of the same run.

`operator_bench`: N jobs arrive together; from the first apply until all pods of a job are created. The floor is a bare
client that creates the very same objects on the same server right before. `recovery_bench`: a pod fails; until its
replacement is created. No kubelet is needed: what is measured is the control plane. Results are the JSON object of
`rljob bench`; progress goes to stderr.
"""

from __future__ import annotations

import asyncio
import copy
import resource
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from rljob_api import load
from rljob_api.constants import API_VERSION, KIND, LABEL_MACHINE
from rljob_bench.lib.kubernetes.operator_observers import PodWatch, Stalled, beside, requests, say, served, settled
from rljob_bench.lib.percentile import percentile
from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection, NoCredentials
from rljob_kube.credentials import Credentials, find_connection
from rljob_kube.errors import ApiError
from rljob_kube.resources import NAMESPACE, POD, RLJOB, Json, Resource
from rljob_kube.transport import RequestLimits
from rljob_operator.app import Operator, Options
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.plan import plan
from rljob_operator.readers.owned_resources import RESOURCES

PODS_PER_JOB = 10
_JOBS_PER_NAMESPACE = 100
_RESYNC_SECONDS = 3600.0
"""Beyond the end of a measurement: what the resync asks is known, and would hide what else is asked."""
_SECOND_LOOK_SECONDS = 12.0
"""After so long a new leader has looked at every job for the second time, or is about to."""

Report = dict[str, Any]


async def operator_bench(
    connection: Connection, jobs: int = 100, workers: int = 16, idle_seconds: float = 30.0
) -> Report:
    """Create `jobs` RLJobs of 10 pods simultaneously, then wait `idle_seconds` in which nothing changes.

    Figures in seconds, requests and MB (resident, of the whole process, which also holds the measuring client).
    """
    count = max(1, jobs // _JOBS_PER_NAMESPACE)
    async with _bench_kube(connection) as kube, _namespaces(kube, count) as namespaces:
        watch = PodWatch(connection, namespaces)
        async with watch.running():
            say(f"a bare client creates what {jobs} jobs consist of")
            floor = await _floor(kube, watch, namespaces, jobs, workers)
            async with _operator(connection, namespaces, workers) as operator:
                began = time.monotonic()
                before = requests(operator)
                say(f"{jobs} jobs for the operator")
                applied = await _apply_jobs(kube, namespaces, jobs)
                times = await watch.all_created(applied, PODS_PER_JOB)
                await settled(operator)
                asked = (requests(operator) - before).total() / jobs
                await asyncio.sleep(max(0.0, began + _SECOND_LOOK_SECONDS - time.monotonic()))
                idle = await _idle(connection, operator, idle_seconds)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
    floor_p50, floor_p99 = percentile(floor, 0.5), percentile(floor, 0.99)
    objects = len(_objects_of(_job("n", "x")))
    return {
        "bench": "operator",
        "seed": 0,
        "settings": {"jobs": jobs, "podsPerJob": PODS_PER_JOB, "workers": workers, "idleSeconds": idle_seconds},
        "figures": [
            _figure("apply to all pods created, p50", p50, "s", None, "bare client", floor_p50),
            _figure("apply to all pods created, p99", p99, "s", None, "bare client", floor_p99),
            _figure("p99 over bare client's p99", p99 / floor_p99, "ratio", 2.0, "same objects, same run", 1.0),
            _figure("API requests per job", asked, "requests", None, "objects per job", float(objects)),
            *_idle_figures(idle, 60.0 / idle_seconds / jobs),
            _figure("resident memory at its highest", memory, "MB", 500.0, "whole process", None),
        ],
        "rows": [
            {"who": "bare client", "p50": floor_p50, "p99": floor_p99, "max": max(floor)},
            {"who": "operator", "p50": p50, "p99": p99, "max": max(times)},
            *({"who": who, "request": name, "count": n} for who, kinds in idle.items() for name, n in kinds.items()),
        ],
    }


async def _idle(connection: Connection, operator: Operator, seconds: float) -> dict[str, dict[str, int]]:
    """Count requests in `seconds` in which nothing changes, as the operator and as the API server count them."""
    await settled(operator, calm=3.0)
    say(f"{seconds:.0f} s in which nothing changes")
    before, before_there = requests(operator), await served(connection)
    await asyncio.sleep(seconds)
    after, after_there = requests(operator), await served(connection)
    return {
        "nothing changes: operator": dict(after - before),
        "nothing changes: server": dict(after_there - before_there),
    }


def _idle_figures(idle: Mapping[str, Mapping[str, int]], share: float) -> list[dict[str, Any]]:
    """Return requests a minute and job; `share` is what one counted request makes of that."""
    resync = 2 * 60.0 / Options().resync_seconds  # the job and its pods
    return [
        _figure(name, sum(kinds.values()) * share, "requests", 0.0, "what the resync asks", resync)
        for name, kinds in zip(
            (
                "API requests a minute for a job in which nothing changes",
                "the same by the API server's count, for RLJobs alone",
            ),
            idle.values(),
            strict=True,
        )
    ]


async def recovery_bench(connection: Connection, failures: int = 40, jobs: int = 10) -> Report:
    """Fail `failures` pods, one after the other, among `jobs` running jobs.

    The time runs from the write that marks a pod Failed until the watch shows its replacement. The floor is the time of
    one bare pod creation, seen by the same watch.
    """
    async with (
        _bench_kube(connection) as kube,
        _namespaces(kube, 1) as namespaces,
        _operator(connection, namespaces, 16) as operator,
    ):
        watch = PodWatch(connection, namespaces)
        async with watch.running():
            applied = await _apply_jobs(kube, namespaces, jobs)
            await watch.all_created(applied, PODS_PER_JOB)
            await settled(operator)
            say(f"{failures} pods fail, one after the other")
            times = [await _fail_one(kube, watch, namespaces[0], n, jobs) for n in range(failures)]
            floor = [await _bare_creation(kube, watch, namespaces[0], n) for n in range(failures)]
    p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
    floor_p50, floor_p99 = percentile(floor, 0.5), percentile(floor, 0.99)
    return {
        "bench": "recovery",
        "seed": 0,
        "settings": {"failures": failures, "jobs": jobs},
        "figures": [
            _figure("pod failed to replacement created, p50", p50, "s", None, "bare creation", floor_p50),
            _figure("pod failed to replacement created, p99", p99, "s", 1.0, "bare creation", floor_p99),
        ],
        "rows": [{"failure": number, "seconds": seconds} for number, seconds in enumerate(times)],
    }


def _figure(name: str, value: float, unit: str, goal: float | None, anchor: str, limit: float | None) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "better": "lower",
        "goal": goal,
        "anchor": anchor,
        "limit": None if limit is None else round(limit, 4),
    }


# --- jobs and namespaces ----------------------------------------------------------------------------------------------


def _job(namespace: str, name: str) -> Json:
    """Return a job of `PODS_PER_JOB` pods: coordinator, trainer and the rest rollout machines."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "rounds": 1,
            "model": {"source": "package://rljob/toy"},
            "data": {"prompts": {"reasoningGym": {"task": "basic_arithmetic"}}},
            "rewards": [{"name": "right", "kind": "Math"}],
            "rollout": {"machines": PODS_PER_JOB - 2, "engine": "Reference"},
        },
    }


def _objects_of(document: Json) -> list[Json]:
    """Return what the operator creates for a job, with the job itself."""
    owned = copy.deepcopy(document)
    owned["metadata"].setdefault("uid", str(uuid.uuid4()))
    decided = plan(load(owned), Observed(), datetime.now(UTC), Config())
    made: list[Mapping[str, Any]] = [*decided.children, *(creation.manifest for creation in decided.creations)]
    return [document, *map(dict, made)]


@asynccontextmanager
async def _namespaces(kube: KubeClient, count: int) -> AsyncIterator[list[str]]:
    """Yield fresh namespaces with the account that pods want (where no controller makes it), and delete them."""
    base = f"bench-{uuid.uuid4().hex[:6]}"
    names = [f"{base}-{number}" for number in range(count)]
    try:
        for name in names:
            await _namespace(kube, name)
        yield names
    finally:
        await _drop(kube, names)


async def _namespace(kube: KubeClient, name: str) -> None:
    await kube.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    account: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
    try:
        await kube.create(RESOURCES["ServiceAccount"], account)
    except ApiError as error:
        if not error.already_exists:
            raise


async def _drop(kube: KubeClient, namespaces: Sequence[str]) -> None:
    """Jobs, pods and namespaces; a cluster with controllers does the rest."""
    say("everything is deleted")
    await _delete_all(kube, namespaces)
    for namespace in namespaces:
        await kube.delete(NAMESPACE, None, namespace)


async def _delete_all(kube: KubeClient, namespaces: Sequence[str]) -> None:
    """All jobs and pods, a few at a time."""
    gate = asyncio.Semaphore(16)

    async def one(kind: Resource, namespace: str, name: str) -> None:
        async with gate:
            await kube.delete(kind, namespace, name)

    for kind in (RLJOB, POD):
        found = [
            (namespace, item)
            for namespace in namespaces
            for item in await kube.list(kind, namespace, metadata_only=True)
        ]
        await asyncio.gather(*(one(kind, namespace, item["metadata"]["name"]) for namespace, item in found))


async def _apply_jobs(kube: KubeClient, namespaces: Sequence[str], jobs: int) -> dict[tuple[str, str], float]:
    """Send all together; return when each was sent, by key."""
    applied: dict[tuple[str, str], float] = {}

    async def one(number: int) -> None:
        namespace, name = namespaces[number % len(namespaces)], f"job-{number}"
        applied[namespace, name] = time.monotonic()
        await kube.create(RLJOB, _job(namespace, name))

    await asyncio.gather(*(one(number) for number in range(jobs)))
    return applied


async def _floor(kube: KubeClient, watch: PodWatch, namespaces: Sequence[str], jobs: int, workers: int) -> list[float]:
    """Create the same objects with a bare client.

    Return per job the seconds from the common start until the same watch has seen its last pod. The jobs name another
    manager, and are deleted immediately.
    """
    gate = asyncio.Semaphore(workers)
    began = time.monotonic()

    async def create(manifest: Json) -> None:
        await kube.create(RESOURCES[manifest["kind"]], manifest)

    async def one(number: int) -> tuple[str, str]:
        namespace, name = namespaces[number % len(namespaces)], f"floor-{number}"
        document = _job(namespace, name)
        document["spec"]["managedBy"] = "rljob.dev/bench"
        created = await kube.create(RLJOB, document)
        async with gate:
            _, *others = _objects_of(document)  # not before: those of all jobs at a time are most of the memory
            for manifest in others:
                manifest["metadata"]["ownerReferences"][0]["uid"] = created["metadata"]["uid"]
            children = [m for m in others if m["kind"] != "Pod"]
            for group in (children, [m for m in others if m["kind"] == "Pod"]):
                await asyncio.gather(*map(create, group))
        return namespace, name

    created = await asyncio.gather(*(one(number) for number in range(jobs)))
    times = await watch.all_created(dict.fromkeys(created, began), PODS_PER_JOB)
    await _delete_all(kube, namespaces)
    return times


# --- what is measured -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _bench_kube(connection: Connection) -> AsyncIterator[KubeClient]:
    """Yield the measuring client."""
    async with KubeClient(
        Credentials(connection), field_manager="rljob-bench", limits=RequestLimits(connections=64)
    ).opened() as kube:
        yield kube


@asynccontextmanager
async def _operator(connection: Connection, namespaces: Sequence[str], workers: int) -> AsyncIterator[Operator]:
    """Run the operator in this process, for these namespaces."""
    options = Options(
        namespaces=tuple(namespaces),
        leader_elect=False,
        workers=workers,
        health_port=None,
        resync_seconds=_RESYNC_SECONDS,
    )
    operator = Operator(options, connection=connection)
    stop = asyncio.Event()
    async with beside("the operator", operator.run(stop), lambda task: stop.set()):
        async with asyncio.timeout(60):
            await operator.ready.wait()
        yield operator


async def _fail_one(kube: KubeClient, watch: PodWatch, namespace: str, number: int, jobs: int) -> float:
    """Return the seconds from the write that fails a machine's newest pod until its replacement is seen.

    Every failure hits a machine that has not failed before, as back-off is not what is measured.
    """
    job, machine = f"job-{number % jobs}", f"rollout-{number // jobs % (PODS_PER_JOB - 2)}"
    key, old, new = (namespace, job), f"{job}-{machine}-1", f"{job}-{machine}-2"
    began = time.monotonic()
    failed: Json = {"status": {"phase": "Failed"}}
    await kube.merge(POD, namespace, old, failed, subresource="status")
    await watch.until(lambda: new in watch.seen[key], f"{new} of {namespace}")
    return watch.seen[key][new] - began


async def _bare_creation(kube: KubeClient, watch: PodWatch, namespace: str, number: int) -> float:
    """Seconds from sending one pod's creation until the watch shows it."""
    manifest = _objects_of(_job(namespace, f"bare-{number}"))[-1]
    del manifest["metadata"]["ownerReferences"]
    key, name = (namespace, f"bare-{number}"), manifest["metadata"]["name"]
    assert manifest["metadata"]["labels"][LABEL_MACHINE]
    began = time.monotonic()
    await kube.create(POD, manifest)
    await watch.until(lambda: name in watch.seen.get(key, {}), f"{name} of {namespace}")
    return watch.seen[key][name] - began


# --- `rljob bench` ----------------------------------------------------------------------------------------------------


def operator(*, quick: bool, seed: int) -> Report:
    """`rljob bench operator`, on the cluster of $KUBECONFIG: 100 jobs together, then 1,000 for the memory they take."""
    report = _run(operator_bench, seed, jobs=20 if quick else 100, idle_seconds=10 if quick else 30)
    if not quick:
        many = _run(operator_bench, seed, jobs=1000)
        report["figures"] += [{**figure, "name": f"1,000 jobs: {figure['name']}"} for figure in many["figures"]]
        report["rows"] += [{**row, "jobs": 1000} for row in many["rows"]]
    return report


def recovery(*, quick: bool, seed: int) -> Report:
    """`rljob bench recovery`, on the cluster of $KUBECONFIG."""
    return _run(recovery_bench, seed, failures=10 if quick else 40)


def _run(bench: Callable[..., Awaitable[Report]], seed: int, **settings: float) -> Report:
    try:
        connection = find_connection()
    except NoCredentials as error:
        raise SystemExit(
            f"{error}; the CRD must be installed there (hack/bench brings up a server of its own)"
        ) from error

    async def serve() -> Report:
        return await bench(connection, **settings)

    try:
        return {**asyncio.run(serve()), "seed": seed}
    except Stalled as error:
        raise SystemExit(f"bench: {error}") from error
