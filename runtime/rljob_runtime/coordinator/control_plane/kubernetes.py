"""The control plane as an RLJob at the API server: watched by name, answered by server-side apply of
`status.runtime`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from rljob_api import RLJob, load
from rljob_api.last_accepted import accepted_job
from rljob_api.status import RuntimeStatus
from rljob_kube.resources import RLJOB
from rljob_runtime.coordinator.control_plane.pod_client import ApiClient
from rljob_runtime.coordinator.core.async_utils import wait_for_event
from rljob_runtime.protocols import Job, PeerError, PeerTimeout

log = logging.getLogger(__name__)

WATCH_SECONDS = 240
"""A watch is renewed before anything in between gets tired of it."""

FAILURE_SECONDS = 2.0
"""Pause after a watch that broke."""


class KubernetesControlPlane:
    """`protocols.ControlPlane` for one job. `run` keeps the watch."""

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._newest: dict[str, Any] | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled; a watch that is cut begins with a fresh read, so nothing is missed."""
        while True:
            try:
                newest = await self._read()
                version = newest["metadata"]["resourceVersion"]
                async for changed in self._client.watch(RLJOB, self._namespace, self._name, version, WATCH_SECONDS):
                    self._keep(changed)
            except PeerError as error:
                log.info("the watch of the job ended: %s", error)
                await asyncio.sleep(FAILURE_SECONDS)

    async def observe(self) -> Job:
        """See `protocols.ControlPlane`: what the watch brought last, or a read before its first word. The spec is the
        one that the operator accepted: an edit that it refuses is not followed here either."""
        newest = self._newest or await self._read()
        return Job(accepted_job(newest) or load(newest), newest["metadata"]["resourceVersion"])

    async def wait_changed(self, seconds: float) -> None:
        """See `protocols.ControlPlane`."""
        if not await wait_for_event(self._changed, seconds):
            # Whatever the watch says: a look of our own now and then.
            await self._read()
            self._changed.clear()

    async def report(self, status: RuntimeStatus) -> None:
        """See `protocols.ControlPlane`. Forced: nobody else may own `status.runtime`."""
        body = {
            "apiVersion": RLJOB.api_version,
            "kind": RLJOB.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "status": {"runtime": status.to_dict()},
        }
        await self._client.apply_status(RLJOB, body)

    async def job(self) -> RLJob:
        """The job, with patience: the first thing a pod asks."""
        while True:
            try:
                return (await self.observe()).job
            except PeerTimeout as error:
                log.warning("the job cannot be read yet: %s", error)
                await asyncio.sleep(FAILURE_SECONDS)

    async def _read(self) -> dict[str, Any]:
        newest = await self._client.get(RLJOB, self._namespace, self._name)
        self._keep(newest)
        return newest

    def _keep(self, newest: dict[str, Any]) -> None:
        if self._newest is None or newest["metadata"]["resourceVersion"] != self._newest["metadata"]["resourceVersion"]:
            self._newest = newest
            self._changed.set()
