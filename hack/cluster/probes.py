"""Probes of process nodes: one attempt of exec, httpGet or tcpSocket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from . import podspec
from .podspec import Object, PodError


async def check(probe: Object, container: Object, address: str, env: Mapping[str, str]) -> bool:
    """One attempt of a probe. Anything that goes wrong, a time-out included, is a failure."""
    try:
        async with asyncio.timeout(float(probe.get("timeoutSeconds", 1))):
            if "exec" in probe:
                return await _exec(probe["exec"]["command"], env)
            target = probe.get("httpGet") or probe.get("tcpSocket")
            if target is None:
                raise PodError("Unsupported", f"a probe of kind {', '.join(probe)}")
            host, port = target.get("host") or address, podspec.port(container, target["port"])
            return await (_http(target, host, port) if "httpGet" in probe else _tcp(host, port))
    except (OSError, TimeoutError, ValueError, PodError):
        return False


async def _exec(command: list[str], env: Mapping[str, str]) -> bool:
    null = asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec(*command, env=env, stdin=null, stdout=null, stderr=null)
    try:
        return await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()


async def _tcp(host: str, port: int) -> bool:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    return True


async def _http(target: Object, host: str, port: int) -> bool:
    tls = ssl._create_unverified_context() if target.get("scheme") == "HTTPS" else None
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        extra = "".join(f"{h['name']}: {h['value']}\r\n" for h in target.get("httpHeaders") or [])
        request = f"GET {target.get('path', '/')} HTTP/1.1\r\nHost: {host}:{port}\r\n{extra}Connection: close\r\n\r\n"
        writer.write(request.encode())
        status = (await reader.readline()).split()
        return len(status) > 1 and 200 <= int(status[1]) < 400
    finally:
        writer.close()
