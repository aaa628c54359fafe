"""Bench observers: what a benchmark sees of the cluster and of the operator that it measures.

A benchmark waits for what others deliver: a watch, an operator. So nothing here ends or fails unnoticed, and no wait is
without a bound.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from rljob_api.constants import LABEL_JOB, PLURAL
from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import POD
from rljob_kube.transport import RequestLimits
from rljob_operator.app import Operator

STALL_SECONDS = 180.0
"""A wait for pods fails when no new one has appeared for so long."""
_END_SECONDS = 60.0
_SAY_SECONDS = 10.0

_STARTED = time.monotonic()


class Stalled(Exception):
    """What a benchmark waits for does not come."""


def say(text: str) -> None:
    """Progress, on stderr, with the seconds since the start."""
    print(f"[{time.monotonic() - _STARTED:6.1f}s] {text}", file=sys.stderr, flush=True)


@asynccontextmanager
async def beside(
    name: str, part: Coroutine[Any, Any, None], stop: Callable[[asyncio.Task[None]], object]
) -> AsyncIterator[None]:
    """Run `part` while the body runs, then `stop` it.

    When it ends or fails before, the body is cancelled and the error raised here. When it does not stop in time, raises
    `Stalled`.
    """
    leaving = False

    async def watched() -> None:
        await part
        if not leaving:
            raise Stalled(f"{name} ended by itself")

    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(watched(), name=name)
            try:
                yield
            finally:
                leaving = True
                stop(task)
                await asyncio.wait({task}, timeout=_END_SECONDS)
                if not task.done():
                    task.cancel()
                    raise Stalled(f"{name} did not end within {_END_SECONDS:.0f} s")
    except ExceptionGroup as group_of_one:
        raise group_of_one.exceptions[0] from None


class PodWatch:
    """The pods of jobs, and when each was first seen, by a watch of its own.

    A server ends a stream when it likes: at its time limit, and earlier when the reader is slow, which a reader in the
    process of a busy operator is. Then the pods are listed, and watched from there.
    """

    def __init__(self, connection: Connection, namespaces: Sequence[str], *, stream_seconds: int = 300) -> None:
        self._connection = connection
        self._namespaces = namespaces
        self._stream_seconds = stream_seconds
        self._changed = asyncio.Event()
        self.seen: dict[tuple[str, str], dict[str, float]] = {}
        """By (namespace, job): pod name to the time it was seen."""
        self.streams = 0
        """Streams begun."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch while the body runs, which begins when all namespaces are listed."""
        async with beside("the watch of pods", self._follow_all(), lambda task: task.cancel()):
            await self.until(lambda: self.streams >= len(self._namespaces), "the first list of pods")
            yield

    async def _follow_all(self) -> None:
        # A connection for the stream of each namespace, and some for lists.
        streams = len(self._namespaces) + 8
        async with KubeClient(
            Credentials(self._connection), field_manager="rljob-bench", limits=RequestLimits(connections=streams)
        ).opened() as kube:
            await asyncio.gather(*(self._follow(kube, namespace) for namespace in self._namespaces))

    async def _follow(self, kube: KubeClient, namespace: str) -> None:
        while True:
            try:
                await self._stream(kube, namespace, await self._list(kube, namespace))
            except Unreachable as error:
                say(f"the watch of pods broke, and starts again: {error}")
                await asyncio.sleep(0.5)

    async def _list(self, kube: KubeClient, namespace: str) -> str:
        """Note all pods; return the version to watch from."""
        found, version = await kube.read_with_version(
            POD, namespace, lambda item: item, labels=LABEL_JOB, metadata_only=True
        )
        for item in found:
            self._note(namespace, item)
        return version

    async def _stream(self, kube: KubeClient, namespace: str, version: str) -> None:
        """Note each new pod, until the stream ends or its version is gone."""
        # Metadata alone: of pods in full the reader would have five times as much to read.
        changes = kube.watch(POD, namespace, version, self._stream_seconds, labels=LABEL_JOB, metadata_only=True)
        self.streams += 1
        self._changed.set()
        try:
            async for kind, pod in changes:
                if kind == "ADDED":
                    self._note(namespace, pod)
        except ApiError as error:
            if not error.expired:
                raise

    def _note(self, namespace: str, pod: Mapping[str, Any]) -> None:
        meta = pod["metadata"]
        pods = self.seen.setdefault((namespace, meta["labels"][LABEL_JOB]), {})
        if meta["name"] not in pods:
            pods[meta["name"]] = time.monotonic()
            self._changed.set()

    # --- waits --------------------------------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for pods to appear. Raises `Stalled` after `STALL_SECONDS` without a new one."""
        told = time.monotonic()
        while not holds():
            self._changed.clear()
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                count = sum(map(len, self.seen.values()))
                raise Stalled(f"{what}: no new pod for {STALL_SECONDS:.0f} s, {count} seen") from None
            if time.monotonic() - told > _SAY_SECONDS:
                told = time.monotonic()
                say(f"{what}: {sum(map(len, self.seen.values()))} pods seen, stream {self.streams}")

    async def all_created(self, applied: Mapping[tuple[str, str], float], count: int) -> list[float]:
        """Seconds from each job's apply until its last pod was seen."""
        await self.until(
            lambda: all(len(self.seen.get(key, {})) >= count for key in applied), f"{count} pods of {len(applied)} jobs"
        )
        return [max(self.seen[key].values()) - began for key, began in applied.items()]


# --- the operator's requests ------------------------------------------------------------------------------------------


def requests(operator: Operator) -> Counter[str]:
    """Count the requests that the operator has sent, by `verb resource`.

    Lists and watches of all Leases and all RLJobs are left out: their number does not depend on that of jobs.
    """
    found: Counter[str] = Counter()
    for metric in operator.metrics.registry.collect():
        for sample in metric.samples:
            if sample.name == "rljob_operator_api_requests_total":
                found[f"{sample.labels['verb']} {sample.labels['resource']}"] += int(sample.value)
    del found["list leases"], found[f"list {PLURAL}"]
    return found


async def served(connection: Connection) -> Counter[str]:
    """Count the requests for single RLJobs that the API server has answered to any client, by verb."""
    async with KubeClient(Credentials(connection)).opened() as kube:
        text = await kube.text("/metrics")
    found: Counter[str] = Counter()
    for labels, count in served_requests(text):
        if labels["resource"] == PLURAL and labels["scope"] == "resource":
            found[labels["verb"]] += count
    return found


def served_requests(text: str) -> Iterator[tuple[Mapping[str, str], int]]:
    """Yield labels and number of the requests that an API server's `/metrics` has."""
    lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total{")]
    for metric in text_string_to_metric_families("\n".join(["# TYPE apiserver_request_total counter", *lines, ""])):
        for sample in metric.samples:
            yield sample.labels, int(sample.value)


async def settled(operator: Operator, *, calm: float = 0.5, at_most: float = 300.0) -> bool:
    """Wait until nothing has been due, and no event has come, for `calm` seconds. False: it did not come to that."""
    end = time.monotonic() + at_most
    events, since = -1.0, time.monotonic()
    while time.monotonic() - since < calm:
        if time.monotonic() > end:
            say(f"the operator is not idle after {at_most:.0f} s")
            return False
        await asyncio.sleep(0.05)
        newest = _events(operator)
        if newest != events or not operator.queue.idle():
            events, since = newest, time.monotonic()
    return True


def _events(operator: Operator) -> float:
    """Events of the operator's watches."""
    return sum(
        sample.value
        for metric in operator.metrics.events_seen.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    )
