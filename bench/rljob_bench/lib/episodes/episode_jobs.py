"""Episode Jobs: a Kubernetes Job for each episode, the baseline of `rljob bench agents` on a real API server.

A pod lasts for as long as its episode's turns take. What counts is the control plane: the seconds from a Job's creation
until its pod runs, and the writes that the API server has to make for it. Where no kubelet starts containers (kwok),
their start is not in the seconds.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rljob_bench.lib.kubernetes.operator_observers import STALL_SECONDS, beside, served_requests
from rljob_bench.lib.percentile import percentile
from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import NAMESPACE, POD, Json, Resource
from rljob_kube.transport import RequestLimits
from rljob_runtime.cli.bench_result import figure

JOB = Resource("Job", "batch", "v1", "jobs")
LABEL = "batch.kubernetes.io/job-name"
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
WRITTEN = ("jobs", "pods", "events")
"""Resources of which an episode's Job makes objects."""
_LOOK_SECONDS = 0.1


class NotPlayed(Exception):
    """The cluster cannot play the Jobs."""


@dataclass
class JobFigures:
    """What the Jobs of some blocks cost. `episode_seconds`: how long each pod lasts."""

    episode_seconds: float
    episodes: int = 0
    seconds: float = 0.0
    writes: int = 0
    acquired: list[float] = field(default_factory=list)
    """Seconds from each Job's creation until its pod ran."""

    @property
    def idle(self) -> float:
        """Share of the episodes' lives in which nothing is generated for them."""
        waited = sum(self.acquired)
        return waited / (waited + self.episodes * self.episode_seconds)


class EpisodeJobs:
    """Plays episodes as Jobs in a namespace of its own."""

    def __init__(self, kube: KubeClient, namespace: str, episode_seconds: float) -> None:
        self.figures = JobFigures(episode_seconds)
        self.namespace = namespace
        self._kube = kube
        self._running: dict[str, asyncio.Event] = {}
        self._blocks = 0

    async def play(self, episodes: int, concurrent: int) -> float:
        """Play a block of episodes, so many at a time. Return its seconds, without those of the pods' removal.

        Raises `NotPlayed` if a pod does not run in time.
        """
        gate, before, began = asyncio.Semaphore(concurrent), await self._writes(), time.monotonic()
        self._blocks += 1

        async def one(name: str) -> None:
            async with gate:
                await self._episode(name)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(episodes):
                    group.create_task(one(f"episode-{self._blocks}-{number}"))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        seconds = time.monotonic() - began
        await self._until_removed()
        self.figures.episodes += episodes
        self.figures.seconds += seconds
        self.figures.writes += await self._writes() - before
        return seconds

    def forget(self) -> None:
        """Forget what was measured so far."""
        self.figures = JobFigures(self.figures.episode_seconds)

    async def watch(self) -> None:
        """Note pods that run, until cancelled."""
        while True:
            try:
                found, version = await self._kube.read_with_version(
                    POD, self.namespace, lambda item: item, labels=LABEL
                )
                for pod in found:
                    self._note(pod)
                async for _, pod in self._kube.watch(POD, self.namespace, version, 300, labels=LABEL):
                    self._note(pod)
            except (Unreachable, ApiError) as error:
                if isinstance(error, ApiError) and not (error.expired or error.transient):
                    raise
                await asyncio.sleep(_LOOK_SECONDS)

    async def _episode(self, name: str) -> None:
        runs = self._running[name] = asyncio.Event()
        began = time.monotonic()
        await self._kube.create(JOB, manifest(name, self.namespace))
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await runs.wait()
        except TimeoutError:
            raise NotPlayed(f"the pod of Job {name} does not run after {STALL_SECONDS:.0f} s") from None
        self.figures.acquired.append(time.monotonic() - began)
        await asyncio.sleep(self.figures.episode_seconds)
        await self._kube.delete(JOB, self.namespace, name)
        del self._running[name]

    def _note(self, pod: Mapping[str, Any]) -> None:
        runs = self._running.get(pod["metadata"]["labels"][LABEL])
        if runs is not None and pod.get("status", {}).get("phase") == "Running":
            runs.set()

    async def _until_removed(self) -> None:
        end = time.monotonic() + STALL_SECONDS
        while left := await self._kube.list(POD, self.namespace, labels=LABEL, metadata_only=True):
            if time.monotonic() > end:
                raise NotPlayed(f"{len(left)} pods of deleted Jobs are left after {STALL_SECONDS:.0f} s")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _writes(self) -> int:
        try:
            return writes(await self._kube.text("/metrics"))
        except ApiError as error:
            raise NotPlayed(f"the writes of the API server cannot be counted: {error}") from error


@asynccontextmanager
async def episode_jobs(connection: Connection, episode_seconds: float) -> AsyncIterator[EpisodeJobs]:
    """Yield a player in a new namespace, which is deleted at the end, after a first Job that shows that pods run.

    Raises `NotPlayed`, before anything is measured."""
    namespace = f"bench-{uuid.uuid4().hex[:6]}"
    async with KubeClient(
        Credentials(connection), field_manager="rljob-bench", limits=RequestLimits(connections=96)
    ).opened() as kube:
        await kube.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        try:
            player = EpisodeJobs(kube, namespace, episode_seconds)
            async with beside("the watch of the Jobs' pods", player.watch(), lambda task: task.cancel()):
                await player.play(1, 1)
                player.forget()
                yield player
        finally:
            await kube.delete(NAMESPACE, None, namespace)


def manifest(name: str, namespace: str) -> Json:
    """Return the Job of an episode: one container, which is deleted with its Job when the episode ends."""
    container = {
        "name": "episode",
        "image": os.environ.get("RLJOB_RUNTIME_IMAGE", "rljob.local/runtime:dev"),
        "command": ["sleep", "3600"],
    }
    pod = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"backoffLimit": 0, "template": {"spec": pod | {"terminationGracePeriodSeconds": 0}}},
    }


def writes(text: str, resources: Sequence[str] = WRITTEN) -> int:
    """Count the writes to some resources and their subresources that an API server's `/metrics` has as done."""
    return sum(
        count
        for labels, count in served_requests(text)
        if labels["verb"] in WRITES and labels["resource"] in resources and labels["code"].startswith("2")
    )


def job_figures(jobs: JobFigures, rate: float) -> list[dict[str, Any]]:
    """Return the figures of the baseline, and the ratio of our `rate` to its."""
    minute = 60.0 * jobs.episodes / jobs.seconds
    return [
        figure("job_episodes_per_minute", minute, anchor="a Job for each episode", unit="episodes/min"),
        figure("over_jobs", rate / minute, anchor="episodes over episodes as Jobs, the same run"),
        figure("job_acquire_p50_seconds", statistics.median(jobs.acquired), unit="s", better="lower"),
        figure("job_acquire_p99_seconds", percentile(jobs.acquired, 0.99), unit="s", better="lower"),
        figure("job_generation_idle", jobs.idle, limit=0.0, better="lower"),
        figure("job_writes_per_episode", jobs.writes / jobs.episodes, unit="writes", better="lower"),
    ]
