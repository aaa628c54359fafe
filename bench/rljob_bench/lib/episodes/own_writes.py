"""Own writes: what a coordinator writes to a real API server while episodes are played.

The reporter, its control plane and the Lease are the coordinator's own. A round of episodes is an event of the report,
as in a job, and each response is progress. Writes are counted at the server: each one changes the job or its Lease, and
a watch of both sees every change. An operator's writes are not in them: none serves the job.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from rljob_api import RLJob
from rljob_api.constants import COORDINATOR_LEASE_SECONDS
from rljob_api.status import RuntimeStatus
from rljob_bench.lib.episodes.episode_jobs import NotPlayed
from rljob_bench.lib.kubernetes.operator_observers import beside
from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import LEASE, NAMESPACE, RLJOB, Json, Resource
from rljob_kube.transport import RequestLimits
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.coordinator.control_plane.kubernetes import KubernetesControlPlane
from rljob_runtime.coordinator.control_plane.lease import TermLease
from rljob_runtime.coordinator.control_plane.pod_client import ApiClient
from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.scheduling.backoff import Backoff

GOAL_WRITES = 0.1
"""Of an episode."""
EPISODES_OF_ROUND = 64
"""As in examples/calculator-agent.yaml."""
MANAGER = "rljob.dev/bench"
"""Controller of the job: none."""
WATCH_SECONDS = 300
SETTLE_SECONDS = 0.5
"""Longest time until a watch shows a write."""


@dataclass
class WriteFigures:
    """Writes of some blocks."""

    episodes: int = 0
    reports: int = 0
    renewals: int = 0
    """Of the Lease."""


def write_figures(writes: WriteFigures) -> list[dict[str, Any]]:
    """Return the coordinator's writes to the API server."""
    return [
        figure(
            "writes_per_episode",
            (writes.reports + writes.renewals) / writes.episodes,
            GOAL_WRITES,
            "reports of the coordinator and renewals of its Lease, counted at the API server",
            unit="writes",
            better="lower",
        ),
        figure("lease_writes_per_episode", writes.renewals / writes.episodes, unit="writes", better="lower"),
    ]


class Reports(Protocol):
    """The reporter, as this module needs it."""

    def update(self, **fields: Any) -> None:
        """Change fields; they are written at the next periodic report."""
        ...

    def event(self, **fields: Any) -> None:
        """Change fields; they are written immediately."""
        ...


class OwnWrites:
    """The coordinator's writes. Between `begin` and `end` they count."""

    def __init__(self, reporter: Reports) -> None:
        self.figures = WriteFigures()
        self._reporter = reporter
        self._seen = WriteFigures()
        self._before = WriteFigures()

    def begin(self) -> None:
        """Begin to count."""
        self._before = replace(self._seen)

    def played(self, episodes: int) -> None:
        """Report that so many more episodes have ended."""
        before, self._seen.episodes = self._seen.episodes, self._seen.episodes + episodes
        self._reporter.update(progress=self._seen.episodes % EPISODES_OF_ROUND / EPISODES_OF_ROUND)
        if self._seen.episodes // EPISODES_OF_ROUND > before // EPISODES_OF_ROUND:
            self._reporter.event(round=self._seen.episodes // EPISODES_OF_ROUND)

    async def end(self) -> None:
        """Count what was written since `begin`."""
        await asyncio.sleep(SETTLE_SECONDS)
        for name in ("episodes", "reports", "renewals"):
            count = getattr(self._seen, name) - getattr(self._before, name)
            setattr(self.figures, name, getattr(self.figures, name) + count)

    def forget(self) -> None:
        """Forget what was counted so far."""
        self.figures = WriteFigures()

    def wrote(self, resource: Resource) -> None:
        """Note a change that the server tells of."""
        if resource is LEASE:
            self._seen.renewals += 1
        else:
            self._seen.reports += 1


@asynccontextmanager
async def own_writes(connection: Connection, job: RLJob) -> AsyncIterator[OwnWrites]:
    """Yield the writes of a coordinator of this job, which exists in a new namespace until the end.

    Raises `NotPlayed` if the server does not take the job."""
    namespace = f"bench-{uuid.uuid4().hex[:6]}"
    credentials = Credentials(connection)
    async with (
        KubeClient(credentials, field_manager="rljob-bench", limits=RequestLimits(connections=8)).opened() as kube,
        ApiClient.opened(credentials) as client,
    ):
        await kube.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        try:
            created = [await _create(kube, RLJOB, job_manifest(job, namespace))]
            created.append(await _create(kube, LEASE, lease_manifest(job.name, namespace)))
            control = KubernetesControlPlane(client, namespace, job.name)
            lease = TermLease(client, namespace, job.name, f"{job.name}-coordinator-0-1", lambda: datetime.now(UTC))
            reporter = Reporter(control, RuntimeStatus(term=await lease.take()), Backoff(initial=0.5, maximum=15.0))
            writes = OwnWrites(reporter)
            watches = [
                _watch(kube, writes, resource, namespace, one)
                for resource, one in zip((RLJOB, LEASE), created, strict=True)
            ]
            working = alongside(asyncio.Event().wait(), reporter.run(), lease.keep(), *watches)
            async with beside(
                "the coordinator that only reports", _until_cancelled(working), lambda task: task.cancel()
            ):
                yield writes
        finally:
            await kube.delete(NAMESPACE, None, namespace)


def job_manifest(job: RLJob, namespace: str) -> Json:
    """Return the job as no operator serves it."""
    found = job.manifest()
    metadata = {"name": job.name, "namespace": namespace}
    return {**found, "metadata": metadata, "spec": {**found["spec"], "managedBy": MANAGER}}


def lease_manifest(name: str, namespace: str) -> Json:
    """Return the Lease that an operator makes for a job."""
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"leaseDurationSeconds": COORDINATOR_LEASE_SECONDS, "leaseTransitions": 0},
    }


async def _create(kube: KubeClient, resource: Resource, manifest: Json) -> Json:
    try:
        return await kube.create(resource, manifest)
    except ApiError as error:
        raise NotPlayed(f"the server takes no {resource.kind} of the benchmark: {error}") from error


async def _watch(
    kube: KubeClient, writes: OwnWrites, resource: Resource, namespace: str, known: Mapping[str, Any]
) -> None:
    """Note each change of an object after the known version, until cancelled."""
    version, fields = known["metadata"]["resourceVersion"], f"metadata.name={known['metadata']['name']}"
    while True:
        with suppress(Unreachable):
            async for kind, found in kube.watch(resource, namespace, version, WATCH_SECONDS, fields=fields):
                version = found["metadata"]["resourceVersion"]
                if kind == "MODIFIED":
                    writes.wrote(resource)


async def _until_cancelled(working: Any) -> None:
    await working
