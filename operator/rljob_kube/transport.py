"""Transport: one request to the API server, bounded in time, sent again where that may help, and counted.

Every write of this project is idempotent (deterministic names, UID preconditions, apply). So each may be sent again
after a broken connection or a transient answer. The caller judges a `create` that is answered with AlreadyExists.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from rljob_api.parsing.nesting import allow_nesting
from rljob_kube.connection import NoCredentials
from rljob_kube.credentials import Access, Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import Json, Resource

JSON = "application/json"
LONGEST_EVENT_BYTES = 8 << 20
"""Of a watch. etcd stores objects of 1.5 MiB; managed fields and escapes add to that."""

OnRequest = Callable[[str, str, str, float], None]
"""`on_request(verb, resource, code, seconds)`. `resource`: the plural. `code`: the status, `2xx`, or `none` without an
answer."""
OnRetry = Callable[[str], None]
"""`on_retry(code)`: a request is sent again after `code`."""


def ignore(*_: object) -> None:
    """Count nothing."""


@dataclass(frozen=True)
class RequestLimits:
    """Bounds of a client: seconds of each request, attempts at it, and connections to the server."""

    seconds: float = 20.0
    attempts: int = 4
    connections: int = 32


class Transport:
    """Connections to one API server. Raises `ApiError` for an answer of 400 and above, `Unreachable` for none."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        on_request: OnRequest = ignore,
        on_retry: OnRetry = ignore,
        field_manager: str = "rljob-operator",
        limits: RequestLimits = RequestLimits(),  # noqa: B008 (frozen)
    ) -> None:
        self._credentials = credentials
        self._on_request = on_request
        self._on_retry = on_retry
        self._field_manager = field_manager
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self._random = random.Random()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Self]:
        """Open the session; its connections are closed on leaving."""
        allow_nesting()
        connector = aiohttp.TCPConnector(limit=self._limits.connections)
        timeout = aiohttp.ClientTimeout(total=self._limits.seconds)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self._session = session
            try:
                yield self
            finally:
                self._session = None

    async def _request(
        self,
        verb: str,
        resource: Resource,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Json:
        """Send until answered, refused for good, or out of attempts. An answer of 401 renews the identity once."""
        headers = {"Accept": accept, "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        attempt, renewed = 1, False
        while True:
            access = await self._access()
            try:
                with self._counted(verb, resource.plural):
                    return await self._send(method, path, data, params or {}, headers)
            except ApiError as error:
                code = str(error.status)
                if error.status == 401 and not renewed and await self._renewed(access):
                    renewed, pause = True, 0.0
                elif attempt < self._limits.attempts and _may_help_again(error):
                    pause = self._pause(attempt, error.retry_after)
                    attempt += 1
                else:
                    raise
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                code = "none"
                if attempt >= self._limits.attempts:
                    raise Unreachable(f"{method} {path}: {error or type(error).__name__}") from error
                pause = self._pause(attempt, None)
                attempt += 1
            self._on_retry(code)
            await asyncio.sleep(pause)

    async def _send(
        self, method: str, path: str, data: bytes | None, params: Mapping[str, str], headers: Mapping[str, str]
    ) -> Json:
        """Send one request, return its answer. Tests inject faults here."""
        async with await self._open(method, path, params, headers, data=data) as response:
            payload = await response.read()
        try:
            decoded: Json = json.loads(payload)
        except ValueError as error:
            raise Unreachable(f"{method} {path}: the answer is no JSON, so it is not the API server's") from error
        return decoded

    @asynccontextmanager
    async def _stream(
        self, resource: Resource, path: str, params: Mapping[str, str], accept: str, seconds: int
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open the response of a watch."""
        timeout = aiohttp.ClientTimeout(total=seconds + self._limits.seconds, sock_connect=self._limits.seconds)
        access = await self._access()
        try:
            with self._counted("watch", resource.plural):
                # aiohttp reads lines of up to twice its buffer.
                response = await self._open(
                    "GET", path, params, {"Accept": accept}, timeout=timeout, read_bufsize=LONGEST_EVENT_BYTES // 2
                )
        except ApiError as error:
            if error.status == 401:
                await self._renewed(access)
            raise
        async with response:
            yield response

    async def _open(
        self, method: str, path: str, params: Mapping[str, str], headers: Mapping[str, str], **options: Any
    ) -> aiohttp.ClientResponse:
        """Send one request, return its response without the body. Raises `ApiError` for a status of 400 and above."""
        if self._session is None:
            raise RuntimeError("the client is used outside `opened()`")
        access, connection = await self._access(), self._credentials.connection
        response = await self._session.request(
            method,
            self._credentials.server + path,
            params=params,
            headers={**headers, **access.headers},
            ssl=access.tls,
            server_hostname=connection.server_name,
            proxy=connection.proxy,
            **options,
        )
        if response.status >= 400:
            async with response:
                payload = await response.read()
            raise ApiError.parse(response.status, payload, response.headers.get("Retry-After"))
        return response

    @contextmanager
    def _counted(self, verb: str, plural: str) -> Iterator[None]:
        """Count the request that the body sends."""
        began, code = time.monotonic(), "none"
        try:
            yield
            code = "2xx"
        except ApiError as error:
            code = str(error.status)
            raise
        finally:
            self._on_request(verb, plural, code, time.monotonic() - began)

    async def _access(self) -> Access:
        try:
            return await self._credentials.access()
        except NoCredentials as error:
            raise Unreachable(str(error)) from error

    async def _renewed(self, refused: Access) -> bool:
        try:
            return await self._credentials.renew(refused)
        except NoCredentials as error:
            raise Unreachable(str(error)) from error

    def _pause(self, attempt: int, retry_after: float | None) -> float:
        """Return the seconds before the next attempt.

        They are what the server asks for (at most 10), else doubled with each attempt, with jitter.
        """
        if retry_after is not None:
            return min(retry_after, 10.0)
        return 0.1 * 2.0**attempt * (0.5 + self._random.random())


def _may_help_again(error: ApiError) -> bool:
    return error.transient and "Too large resource version" not in error.message
