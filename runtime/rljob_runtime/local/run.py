"""`rljob run`: from a manifest to a trained model, on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import ray

from rljob_api import RLJob
from rljob_api.status import RLJobStatus, RuntimeStatus
from rljob_runtime.coordinator.actors import Places
from rljob_runtime.coordinator.assembly import Folders, play
from rljob_runtime.coordinator.coordinator import Coordinator
from rljob_runtime.coordinator.environment import LazyRewards
from rljob_runtime.coordinator.ray_binding import RayBinding
from rljob_runtime.local.control_plane import LocalControlPlane
from rljob_runtime.models.source import cache_folder
from rljob_runtime.relay.segment import SHARED_MEMORY

log = logging.getLogger(__name__)


def run(job: RLJob, workdir: Path, on_progress: Callable[[RuntimeStatus], None] = lambda status: None) -> RuntimeStatus:
    """Run the job to its end and return its last `status.runtime`; `finished` is None if it was interrupted.

    All state is below `workdir`: a second call goes on where the first one stopped. SIGINT and SIGTERM stop it cleanly.
    """
    workdir = workdir.resolve()
    job = _with_uid(job, workdir)
    with (
        local_places(workdir, SHARED_MEMORY / f"rljob-{job.metadata.uid}") as places,
        _log_to(workdir / "coordinator.log"),
        local_ray(job),
    ):
        return asyncio.run(_run(job, places, workdir, on_progress))


@contextlib.contextmanager
def local_places(folder: Path, shared: Path) -> Iterator[Places]:
    """All state is below `folder`, weights are in `shared`, which goes at the end."""
    places = Places(
        shared_memory=shared,
        scratch=folder / "scratch",
        models=cache_folder(),
        volume=folder,
        relay_key=_relay_key(folder / "auth" / "relay-key"),
    )
    shared.mkdir(mode=0o700, exist_ok=True)
    try:
        yield places
    finally:
        shutil.rmtree(shared, ignore_errors=True)


async def _run(
    job: RLJob, places: Places, workdir: Path, on_progress: Callable[[RuntimeStatus], None]
) -> RuntimeStatus:
    def show(status: RLJobStatus) -> None:
        if status.runtime is not None:
            on_progress(status.runtime)

    control = LocalControlPlane(job, show)
    binding = RayBinding(job, places, resource_of=lambda member: member.machine)
    rewards = LazyRewards(job.spec)
    await play(job, rewards, control, binding, Folders(workdir, places.scratch), term=1, on_start=_stop_on_signals)
    return control.status.runtime or RuntimeStatus()


def _stop_on_signals(coordinator: Coordinator) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, coordinator.stop)


def _with_uid(job: RLJob, workdir: Path) -> RLJob:
    """The job with the identity that its work folder gives it: the same for every run in it."""
    path = workdir / "uid"
    if not path.exists():
        workdir.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(8))
    metadata = job.metadata.model_copy(update={"uid": path.read_text().strip()})
    return job.model_copy(update={"metadata": metadata})


def _relay_key(path: Path) -> Path:
    """The file of a key that only this run knows, made if it is not there."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return path


@contextlib.contextmanager
def local_ray(job: RLJob) -> Iterator[None]:
    """A Ray of one node on which every logical machine is a custom resource."""
    rollout, trainer = job.spec.rollout, job.spec.trainer
    names = [f"rollout-{index}" for index in range(rollout.largest)]
    names += [f"trainer-{index}" for index in range(trainer.replicas)]
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray gives its own processes 30 s to start, which is little on a busy laptop.
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    ray.init(
        address="local",
        namespace=job.name,
        resources=dict.fromkeys(names, 1),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
        configure_logging=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("rljob_runtime")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
