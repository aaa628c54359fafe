"""Local control plane: the operator's policies in-process, over logical machines that are ready immediately."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from rljob_api import RLJob
from rljob_api.status import RLJobStatus, RuntimeStatus
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.observation import Observed, Pod
from rljob_operator.policies.creation import Creation
from rljob_operator.policies.plan import plan
from rljob_runtime.coordinator.core.async_utils import wait_for_event
from rljob_runtime.protocols import Job

# Applying a plan changes the next plan. Plans settle in a few steps; a policy that does not settle is a bug.
MAX_STEPS = 50


class LocalControlPlane:
    """`protocols.ControlPlane` with the operator inside. `on_status` receives every status of the complete job."""

    def __init__(
        self,
        job: RLJob,
        on_status: Callable[[RLJobStatus], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._job = job
        self._on_status = on_status
        self._now = now
        self._pods: dict[str, Pod] = {}
        self._version = 0
        self._changed = asyncio.Event()
        self._config = Config()
        self._reconcile()

    @property
    def status(self) -> RLJobStatus:
        """Status as `kubectl describe` would show it."""
        return self._job.status

    def edit(self, change: Callable[[RLJob], RLJob]) -> None:
        """Change the spec as `kubectl edit` would: a new generation."""
        job = change(self._job)
        metadata = job.metadata.model_copy(update={"generation": job.metadata.generation + 1})
        self._job = job.model_copy(update={"metadata": metadata})
        self._reconcile()

    def _reconcile(self) -> None:
        for _ in range(MAX_STEPS):
            seen = Observed(pods=tuple(self._pods.values()), children_present=True)
            decided = plan(self._job, seen, self._now(), self._config)
            if decided.status is None and not decided.creations and not decided.removals:
                break
            for creation in decided.creations:
                self._create(creation)
            for removal in decided.removals:
                self._pods.pop(removal.pod.name, None)
            if decided.status is not None:
                self._set(decided.status.model_copy(update={"runtime": self._job.status.runtime}))
        else:
            raise RuntimeError(f"the operator's plan for {self._job.name} does not settle")

    def _create(self, creation: Creation) -> None:
        metadata = creation.manifest["metadata"]
        labels = metadata["labels"]
        self._pods[metadata["name"]] = Pod(
            name=metadata["name"],
            uid=metadata["name"],
            role=creation.new.role,
            machine=creation.new.machine,
            incarnation=creation.new.incarnation,
            epoch=int(labels.get("rljob.dev/epoch", 0)),
            shape=labels.get("rljob.dev/shape", ""),
            phase="Running",
            ready=True,
            ip="127.0.0.1",
            created=self._now(),
        )

    def _set(self, status: RLJobStatus) -> None:
        self._job = self._job.model_copy(update={"status": status})
        self._version += 1
        self._changed.set()
        self._on_status(status)

    # --- ControlPlane ---

    async def observe(self) -> Job:
        return Job(self._job, str(self._version))

    async def wait_changed(self, seconds: float) -> None:
        await wait_for_event(self._changed, seconds)

    async def report(self, status: RuntimeStatus) -> None:
        self._set(self._job.status.model_copy(update={"runtime": status}))
        self._reconcile()
