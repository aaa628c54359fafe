"""`python -m rljob_operator` as a process: it serves, and ends cleanly when it is told to."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import Any

import aiohttp
import pytest

from rljob_kube.connection import Connection
from tests.support.operator.harness import Server, until

pytestmark = pytest.mark.cluster


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _get(url: str) -> tuple[int, str]:
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()
    except aiohttp.ClientError:
        return 0, ""


async def _start(namespace: str, port: int, kubeconfig: str) -> asyncio.subprocess.Process:
    env = {**os.environ, "KUBECONFIG": kubeconfig, "POD_NAMESPACE": namespace, "POD_NAME": "op-1"}
    env.pop("KUBERNETES_SERVICE_HOST", None)
    flags = ["-n", namespace, "--health-port", str(port), "--runtime-image", "example/runtime:1"]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rljob_operator", *flags, env=env, stderr=asyncio.subprocess.PIPE
    )


async def _stderr_of(process: asyncio.subprocess.Process) -> str:
    _, told = await asyncio.wait_for(process.communicate(), 60)
    return told.decode()


async def test_it_serves_until_sigterm(connection: Connection, apiserver: Any, server: Server) -> None:
    port = _free_port()
    process = await _start(server.namespace, port, str(apiserver.kubeconfig))
    try:

        async def leads() -> bool:
            return (await _get(f"http://127.0.0.1:{port}/readyz")) == (200, "leading")

        await until(leads)
        await server.apply_job()
        await server.until(lambda j: (j.get("status") or {}).get("members"))
        _, metrics = await _get(f"http://127.0.0.1:{port}/metrics")
        assert "rljob_operator_leader 1.0" in metrics
        process.send_signal(signal.SIGTERM)
        told = await _stderr_of(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, told
    assert "Traceback" not in told
    secret = await server.kube._send("GET", f"/api/v1/namespaces/{server.namespace}/secrets", None, {}, {})
    keys = [value for item in secret["items"] for value in item.get("data", {}).values()]
    assert keys
    assert not any(key in told for key in keys)


async def test_without_a_cluster_it_says_so() -> None:
    process = await _start("default", _free_port(), "/nowhere/kubeconfig")
    told = await _stderr_of(process)
    assert process.returncode == 1
    assert "/nowhere/kubeconfig does not exist: run in a pod with a service account, or set KUBECONFIG" in told
    assert "Traceback" not in told
