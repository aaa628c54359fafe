"""Local Ray: one Ray node for a run on this machine. Every logical machine is a custom resource.

If a Ray process ends, or Ray starts no worker, every call waits forever. So this module watches for both and raises an
error that names the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import exceptions

from rljob_api import RLJob

START_SECONDS = 120
"""Seconds for Ray's processes to start. Ray's default of 30 s is too short on a busy laptop."""
WORKER_SECONDS = 180.0
"""Seconds until the first worker answers. Ray itself retries forever."""
PROCESSES = ("raylet", "gcs_server")
"""Processes that Ray cannot run without."""
SHOWN = 300
"""Characters shown of a log's last line."""


class RayFailed(Exception):
    """The local Ray did not start, starts no worker, or has ended. The message names its log."""


@dataclass(frozen=True)
class LocalRay:
    """A started Ray node. `processes`: ids of the processes that must live, by name."""

    logs: Path
    processes: Mapping[str, int]

    async def ended(self) -> str:
        """Wait until one of its processes ends; return its name."""
        loop = asyncio.get_running_loop()
        first: asyncio.Future[str] = loop.create_future()

        def report_end(name: str) -> None:
            if not first.done():
                first.set_result(name)

        with contextlib.ExitStack() as closing:
            for name, pid in self.processes.items():
                try:
                    descriptor = os.pidfd_open(pid)
                except ProcessLookupError:
                    return name
                closing.callback(os.close, descriptor)
                loop.add_reader(descriptor, report_end, name)
                closing.callback(loop.remove_reader, descriptor)
            return await first

    def failure(self, what: str, logs: str) -> RayFailed:
        """Return an error with `what` and the last line of the newest log that matches."""
        return RayFailed(f"{what}; {_last_words(self.logs, logs)}")


@contextlib.contextmanager
def local_ray(job: RLJob) -> Iterator[LocalRay]:
    """Start Ray, and stop it at the end of the block. Raises `RayFailed` if it does not start."""
    rollout, trainer = job.spec.rollout, job.spec.trainer
    names = [f"rollout-{index}" for index in range(rollout.largest)]
    names += [f"trainer-{index}" for index in range(trainer.replicas)]
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", str(START_SECONDS))
    before = set(_children())
    try:
        context: Any = ray.init(
            address="local",
            namespace=job.name,
            resources=dict.fromkeys(names, 1),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
            configure_logging=False,
        )
    except Exception as error:  # Ray raises bare ones too, as where its processes start slowly
        ray.shutdown()
        why = " ".join(str(error).split())[:SHOWN]
        raise RayFailed(
            f"Ray does not start on this machine: {why}; if other programs keep it busy, try again when they have ended"
        ) from error
    try:
        started = {name: pid for pid, name in _children().items() if pid not in before and name in PROCESSES}
        node = LocalRay(Path(context.address_info["session_dir"]) / "logs", started)
        _expect_worker(node)
        yield node
    finally:
        ray.shutdown()


@ray.remote(num_cpus=0, max_retries=0)
def _answer() -> None:
    """Return nothing."""


def _expect_worker(node: LocalRay) -> None:
    """Wait until a worker answers. Raises `RayFailed` if none does."""
    try:
        ray.get(_answer.remote(), timeout=WORKER_SECONDS)
    except exceptions.RayError as error:
        waited = isinstance(error, exceptions.GetTimeoutError)
        why = f"none has joined within {WORKER_SECONDS:g} s" if waited else " ".join(str(error).split())[:SHOWN]
        raise node.failure(f"Ray starts no worker on this machine: {why}", "*worker*.err") from error


def _children() -> dict[int, str]:
    """Return ids and names of the child processes."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = status.read_text().rpartition(")")
            if int(rest.split()[1]) == os.getpid():
                pid, _, name = head.partition(" (")
                found[int(pid)] = name
    return found


def _last_words(logs: Path, pattern: str) -> str:
    """Return the newest log of this pattern that is not empty, with its last line."""
    written = [path for path in logs.glob(pattern) if path.stat().st_size]
    if not written:
        return f"its logs are in {logs}"
    newest = max(written, key=lambda path: path.stat().st_mtime)
    lines = [line for line in newest.read_text(errors="replace").splitlines() if line.strip()]
    return f"{newest} ends with: {lines[-1].strip()[:SHOWN] if lines else ''}"
