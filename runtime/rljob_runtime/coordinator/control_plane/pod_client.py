"""The API server as a pod reaches it: its service account's token, three verbs on one job and one Lease, and a watch.

A few lines over aiohttp instead of a client library: the runtime's image needs nothing more. Every call has a bound;
the token is read anew for each call, because it is rotated under us.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from rljob_api.parsing.nesting import allow_nesting
from rljob_runtime.protocols import PeerTimeout, Refused

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
LONGEST_EVENT_BYTES = 8 << 20
"""Of a watch. etcd takes objects of 1.5 MiB, and their managed fields and escapes add to that."""


class Conflict(Refused):
    """409: somebody else wrote first."""


class NotFound(Refused):
    """404: it is gone, or never was."""


class Expired(Refused):
    """410: the watch is too old; list again."""


@dataclass(frozen=True)
class Server:
    """Where the API server is and who we are to it."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str] = os.environ) -> Server:
        """As every pod with a service account sees it. Raises `KeyError` outside of a cluster."""
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt")


class ApiClient:
    """Use as an async context manager. Raises `PeerTimeout` when the server cannot be reached or is overloaded, and
    `Refused` (with its message) when it says no."""

    def __init__(self, server: Server, bound: float = 15.0) -> None:
        self._server = server
        self._bound = bound
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ApiClient:
        allow_nesting()
        tls = ssl.create_default_context(cafile=self._server.ca_file) if self._server.ca_file else None
        connector = aiohttp.TCPConnector(ssl=tls) if tls is not None else aiohttp.TCPConnector()
        # aiohttp reads lines of up to twice its buffer.
        self._session = aiohttp.ClientSession(
            base_url=self._server.url, connector=connector, read_bufsize=LONGEST_EVENT_BYTES // 2
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> dict[str, Any]:
        """Read one object."""
        return await self._call("GET", path)

    async def patch(self, path: str, body: Mapping[str, Any], kind: str, **query: str) -> dict[str, Any]:
        """Patch one object; `kind` is the patch's content type."""
        return await self._call("PATCH", path, body, kind, query)

    async def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace one object; `Conflict` when its resourceVersion is not the newest."""
        return await self._call("PUT", path, body, "application/json")

    async def watch(self, path: str, query: Mapping[str, str], seconds: int) -> AsyncIterator[dict[str, Any]]:
        """Objects as they change, for at most so long. Raises `Expired` when the resource version is too old."""
        assert self._session is not None, "use it as a context manager"
        timeout = aiohttp.ClientTimeout(total=seconds + self._bound, sock_connect=self._bound)
        parameters = {**query, "watch": "true", "timeoutSeconds": str(seconds)}
        try:
            async with self._session.get(path, params=parameters, headers=self._headers(), timeout=timeout) as response:
                await _check(response, "WATCH", path)
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise Expired(str(event["object"].get("message", "the watch ended")))
                    if event["type"] != "BOOKMARK":
                        yield event
        except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError, LookupError) as error:
            raise PeerTimeout(f"watch of {path}: {error!r}") from error

    async def _call(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        assert self._session is not None, "use it as a context manager"
        headers = {**self._headers(), "Content-Type": content_type}
        timeout = aiohttp.ClientTimeout(total=self._bound)
        data = json.dumps(body) if body is not None else None
        try:
            async with self._session.request(
                verb, path, data=data, params=query, headers=headers, timeout=timeout
            ) as response:
                await _check(response, verb, path)
                answer: dict[str, Any] = await response.json()
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PeerTimeout(f"{verb} {path}: {error!r}") from error

    def _headers(self) -> dict[str, str]:
        if self._server.token_file is None:
            return {}
        return {"Authorization": f"Bearer {self._server.token_file.read_text().strip()}"}


async def _check(response: aiohttp.ClientResponse, verb: str, path: str) -> None:
    if response.status < 400:
        return
    try:
        message = (await response.json(content_type=None)).get("message", response.reason)
    except (TimeoutError, ValueError, AttributeError, aiohttp.ClientError):
        message = response.reason
    text = f"{verb} {path}: {response.status} {message}"
    if response.status == 429 or response.status >= 500:
        raise PeerTimeout(text)
    raise {404: NotFound, 409: Conflict, 410: Expired}.get(response.status, Refused)(text)
