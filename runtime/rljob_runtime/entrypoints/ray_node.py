"""Ray node: this pod's part of the Ray cluster, a child `ray start` that lives as long as the pod.

The reasons for the settings are in docs/internals/coordinator/ray-head.md. Workers reconnect by name to a head that
returns elsewhere. Actors survive its absence if the head's tables are on a volume and every timeout is longer.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from rljob_api.constants import RAY_DIR, RAY_PORT
from rljob_runtime.entrypoints.pod_env import Identity

log = logging.getLogger(__name__)

RAYLET_SOCKET = Path(RAY_DIR) / "session_latest/sockets/raylet"
"""Exists while the raylet runs, which it does once the head has answered. Below Ray's default folder."""

HEAD_ABSENCE_SECONDS = 600
"""Longest outage of the coordinator that engines survive."""

STOP_SECONDS = 10.0
"""Seconds in which `ray start --block` must end its raylet; then it is killed."""


def environment(token_file: Path, storage: Path | None, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings of the child and of the driver; `storage` is the head's."""
    settings = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEAD_ABSENCE_SECONDS),
        # A head on a disconnected node closes no connection. Its clients would not find the next head and start no
        # actor. Ray's default is 300 s; its servers check their clients as often as this.
        "RAY_grpc_client_keepalive_time_ms": "10000",
        "RAY_grpc_client_keepalive_timeout_ms": "20000",
        # The C library's resolver looks a name up again when a connection breaks, and reads /etc/hosts.
        "GRPC_DNS_RESOLVER": "native",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Engines size their own memory; Ray must not kill one for it.
        "RAY_memory_monitor_refresh_ms": "0",
        # Ray's own processes may start slowly on shared CPUs.
        "RAY_raylet_start_wait_time_s": "120",
        # Ray's default is 15. Computing actors lower their own priority (`ray_backend.actors`); relays must not.
        "RAY_worker_niceness": "0",
        # A pod without accelerators must still see those that a template mounts manually.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    if storage is not None:
        settings["RAY_gcs_storage"] = "rocksdb"
        settings["RAY_gcs_storage_path"] = str(storage)
    # The user id of a pod has no name in /etc/passwd, and some libraries require one.
    return {"USER": "rljob", "LOGNAME": "rljob", **base, **settings}


def head_command(pod_ip: str) -> list[str]:
    """Return the command of the head: tables and name service, without our actors."""
    return [*_start(pod_ip), "--head", f"--port={RAY_PORT}", "--num-cpus=0", "--include-dashboard=false"]


def worker_command(identity: Identity) -> list[str]:
    """Return the command of a worker.

    It joins by the coordinator's name and carries the resource that pins actors to it.
    """
    resources = json.dumps({identity.resource: 1})
    return [*_start(identity.pod_ip), f"--address={identity.coordinator}:{RAY_PORT}", f"--resources={resources}"]


def _start(pod_ip: str) -> list[str]:
    ray = str(Path(sys.executable).with_name("ray"))
    # Objects in Ray are small: weights are sent by the relay.
    return [
        ray,
        "start",
        "--block",
        f"--node-ip-address={pod_ip}",
        "--object-store-memory=100000000",
        "--disable-usage-stats",
    ]


def tables_held(storage: Path) -> Path | None:
    """Return the lock of Ray's tables below `storage` if a process holds it, on this host or another."""
    for lock in sorted(storage.rglob("LOCK")):
        try:
            with lock.open("r+b") as file:
                # Take RocksDB's lock as RocksDB does, and release it immediately.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return lock
            log.warning("%s cannot be checked: %s", lock, error)
    return None


class NodeEnded(Exception):
    """Ray has ended. Nothing in the pod works without it, so the pod ends too."""


class RayNode:
    """Child process of `ray start`."""

    def __init__(self, command: list[str], settings: Mapping[str, str]) -> None:
        self._command = command
        self._settings = dict(settings)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def up(self) -> bool:
        """True while the child runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def joined(self) -> bool:
        """True while the child runs and its raylet is part of the cluster."""
        return self.up and RAYLET_SOCKET.exists()

    async def run(self) -> int:
        """Start the child, wait for its end and return its exit code. If cancelled, the child is ended first."""
        # Its own process group: this process passes signals on, in its own order.
        self._process = await asyncio.create_subprocess_exec(
            *self._command, env=self._settings, start_new_session=True, stdout=sys.stderr
        )
        try:
            return await self._process.wait()
        finally:
            await asyncio.shield(self._end())

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                log.warning("ray did not end within %g s; it is killed", STOP_SECONDS)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
