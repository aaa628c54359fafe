"""This pod's part of the Ray cluster: `ray start` as a child that lives as long as the pod.

The facts behind the settings are in docs/internals/coordinator/ray-head.md: workers follow a head that comes back
elsewhere by its name, and actors live on while it is away, if the head's tables are on a volume and nobody's patience
ends before.
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
"""There once the raylet runs, which it does when the head has answered. Below Ray's default folder."""

HEAD_ABSENCE_SECONDS = 600
"""The longest outage of the coordinator that engines live through."""

STOP_SECONDS = 10.0
"""`ray start --block` ends its raylet within this, or is killed."""


def environment(token_file: Path, storage: Path | None, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Settings of the child (and of the driver); `storage` is the head's."""
    settings = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEAD_ABSENCE_SECONDS),
        # A head whose node is cut off says no goodbye: who stays connected to it hears nothing of the next one, and
        # starts no actor. Ray's default is 300 s; its servers look after their clients as often as this.
        "RAY_grpc_client_keepalive_time_ms": "10000",
        "RAY_grpc_client_keepalive_timeout_ms": "20000",
        # The C library's resolver: looks a name up anew when a connection broke, and reads /etc/hosts.
        "GRPC_DNS_RESOLVER": "native",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Engines size their memory themselves; Ray must not kill one for it.
        "RAY_memory_monitor_refresh_ms": "0",
        # Its own processes may start slowly where CPUs are shared.
        "RAY_raylet_start_wait_time_s": "120",
        # Ray's is 15. Actors that compute stand back by themselves (`ray_backend.actors`); relays shall not.
        "RAY_worker_niceness": "0",
        # A pod without accelerators must still see those that a template mounts by hand.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    if storage is not None:
        settings["RAY_gcs_storage"] = "rocksdb"
        settings["RAY_gcs_storage_path"] = str(storage)
    # The user id of a pod has no name in /etc/passwd, and some libraries ask for one.
    return {"USER": "rljob", "LOGNAME": "rljob", **base, **settings}


def head_command(pod_ip: str) -> list[str]:
    """The head: tables and name service; it runs no actor of ours."""
    return [*_start(pod_ip), "--head", f"--port={RAY_PORT}", "--num-cpus=0", "--include-dashboard=false"]


def worker_command(identity: Identity) -> list[str]:
    """A worker that joins by the coordinator's name and carries the resource that pins actors to it."""
    resources = json.dumps({identity.resource: 1})
    return [*_start(identity.pod_ip), f"--address={identity.coordinator}:{RAY_PORT}", f"--resources={resources}"]


def _start(pod_ip: str) -> list[str]:
    ray = str(Path(sys.executable).with_name("ray"))
    # Objects that pass through Ray are small: weights go by the relay.
    return [
        ray,
        "start",
        "--block",
        f"--node-ip-address={pod_ip}",
        "--object-store-memory=100000000",
        "--disable-usage-stats",
    ]


def tables_held(storage: Path) -> Path | None:
    """The lock of Ray's tables below `storage`, where a process holds it, on this host or on another one."""
    for lock in sorted(storage.rglob("LOCK")):
        try:
            with lock.open("r+b") as file:
                # Of RocksDB: as it does, but for a moment.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return lock
            log.warning("%s cannot be looked at: %s", lock, error)
    return None


class NodeEnded(Exception):
    """Ray ended under us: nothing in the pod works without it, so the pod ends too."""


class RayNode:
    """The child process. `up` says whether it runs."""

    def __init__(self, command: list[str], settings: Mapping[str, str]) -> None:
        self._command = command
        self._settings = dict(settings)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def up(self) -> bool:
        """Whether the child runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def joined(self) -> bool:
        """Whether the child runs and its raylet is part of the cluster."""
        return self.up and RAYLET_SOCKET.exists()

    async def run(self) -> int:
        """Start the child and wait for its end; its exit code. When cancelled, the child is ended first."""
        # A group of its own: a signal to us is ours to pass on, in our order.
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
