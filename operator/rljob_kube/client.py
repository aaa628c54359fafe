"""Requests to the API server: list, get, create, delete, merge-patch and server-side apply, each bounded and measured.

Every write of this operator is idempotent (deterministic names, UID preconditions, apply), so each may be sent again
after a reset connection or an answer that invites it; a `create` that comes back as AlreadyExists is for the caller to
judge.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import aiohttp

from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import Json, Resource

_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_MERGE = "application/merge-patch+json"
_JSON = "application/json"
T = TypeVar("T")
Kept = list[T]
Items = Kept[Json]
ANY = "1"
"""A resource version that every cache is past. "0" says the same, and a server takes no notice of the limit with it."""
_LISTS = 3
"""Attempts at a list whose version the server drops between two pages."""


class RequestObserver(Protocol):
    """Receives what the client does; the operator makes metrics of it."""

    def observe_request(self, verb: str, plural: str, code: str, seconds: float) -> None:
        """Record one request. `code`: the status, `2xx`, or `none` without an answer."""
        ...

    def observe_retry(self, code: str) -> None:
        """Record that a request is sent again after `code`."""
        ...


class Kube:
    """One client for the whole process. Raises `ApiError` for an answer of 400 and above, `Unreachable` for none."""

    def __init__(
        self,
        credentials: Credentials,
        observer: RequestObserver,
        *,
        field_manager: str = "rljob-operator",
        request_seconds: float = 20.0,
        attempts: int = 4,
        connections: int = 32,
    ) -> None:
        self._credentials = credentials
        self._observer = observer
        self._field_manager = field_manager
        self._request_seconds = request_seconds
        self._attempts = attempts
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._random = random.Random()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Kube]:
        """The client with its connections; they are closed on leaving."""
        connector = aiohttp.TCPConnector(limit=self._connections, ssl=self._credentials.ssl_context())
        timeout = aiohttp.ClientTimeout(total=self._request_seconds)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self._session = session
            try:
                yield self
            finally:
                self._session = None

    # --- verbs --------------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        return await self._request("get", resource, "GET", resource.path(namespace, name))

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str = "",
        not_older_than: str | None = None,
        metadata_only: bool = False,
    ) -> Items:
        """All items of a collection, whole (`read`)."""
        return await self.read(
            resource,
            namespace,
            lambda item: item,
            labels=labels,
            not_older_than=not_older_than,
            metadata_only=metadata_only,
        )

    async def read(
        self,
        resource: Resource,
        namespace: str | None,
        keep: Callable[[Json], T],
        *,
        labels: str = "",
        not_older_than: str | None = None,
        metadata_only: bool = False,
    ) -> Kept[T]:
        """What `keep` makes of each item of a collection. The items come in pages of one version, so no more than a
        page of them is in memory. `not_older_than` is a resource version: the answer may come from the server's cache
        if that is at least as fresh (`ANY`: whatever it is). Where the server drops the version between two pages, the
        list begins anew, `_LISTS` times at most."""
        params: dict[str, str] = {"limit": str(resource.page)}
        if labels:
            params["labelSelector"] = labels
        if not_older_than is not None:
            params |= {"resourceVersion": not_older_than, "resourceVersionMatch": "NotOlderThan"}
        accept = f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1" if metadata_only else _JSON
        for attempt in range(1, _LISTS + 1):
            try:
                return await self._pages(resource, resource.path(namespace), params, accept, keep)
            except ApiError as error:
                if not error.expired or attempt == _LISTS:
                    raise
        raise AssertionError("unreachable")

    async def _pages(
        self, resource: Resource, path: str, params: dict[str, str], accept: str, keep: Callable[[Json], T]
    ) -> Kept[T]:
        """All pages of a list. Raises ApiError 410 when their version is gone before the last one."""
        found: Kept[T] = []
        while True:
            answer = await self._request("list", resource, "GET", path, params=params, accept=accept)
            found += map(keep, answer.get("items") or [])
            token = answer.get("metadata", {}).get("continue")
            if not token:
                return found
            del answer  # before the next page comes
            kept = {name: value for name, value in params.items() if not name.startswith("resourceVersion")}
            params = kept | {"continue": token}  # in place of the last page's

    async def create(self, resource: Resource, manifest: Json) -> Json:
        path = resource.path(manifest["metadata"].get("namespace"))
        params = {"fieldManager": self._field_manager}
        return await self._request("create", resource, "POST", path, manifest, params=params)

    async def replace(self, resource: Resource, manifest: Json) -> Json:
        """PUT; the manifest's resourceVersion is the precondition."""
        meta = manifest["metadata"]
        path = resource.path(meta.get("namespace"), meta["name"])
        return await self._request("update", resource, "PUT", path, manifest)

    async def apply(self, resource: Resource, manifest: Json, *, subresource: str | None = None) -> Json:
        """Server-side apply: what the manifest names is ours, what it no longer names and we owned goes."""
        meta = manifest["metadata"]
        path = resource.path(meta.get("namespace"), meta["name"], subresource)
        params = {"fieldManager": self._field_manager, "force": "true"}
        return await self._request("patch", resource, "PATCH", path, manifest, params=params, content_type=_APPLY)

    async def merge(
        self, resource: Resource, namespace: str, name: str, patch: Json, *, subresource: str | None = None
    ) -> Json:
        path = resource.path(namespace, name, subresource)
        return await self._request("patch", resource, "PATCH", path, patch, content_type=_MERGE)

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        policy: str = "Background",
        grace_seconds: int | None = None,
    ) -> None:
        """Delete the object if it still is the one with this `uid` (Conflict otherwise). Gone already is fine.
        `grace_seconds` 0: a pod goes at once, whatever its kubelet says."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._request("delete", resource, "DELETE", resource.path(namespace, name), body)
        except ApiError as error:
            if not error.not_found:
                raise

    async def find(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        """One object, None where it does not exist."""
        try:
            return await self.get(resource, namespace, name)
        except ApiError as error:
            if not error.not_found:
                raise
            return None

    async def serves(self, group: str, version: str, plural: str | None = None) -> bool:
        """Whether the API server has this version of an API group, and in it these objects, by discovery."""
        resources = Resource("APIResourceList", group, version, "apis")
        try:
            found = await self._request("get", resources, "GET", f"/apis/{group}/{version}")
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return plural is None or any(one["name"] == plural for one in found.get("resources") or [])

    # --- transport ----------------------------------------------------------------------------------------------------

    async def _request(
        self,
        verb: str,
        resource: Resource,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Json:
        """Send until answered, refused for good, or out of attempts."""
        headers = {"Accept": accept, "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(1, self._attempts + 1):
            began = time.monotonic()
            code = "none"
            try:
                answer = await self._send(method, path, data, params or {}, headers)
                code = "2xx"
                return answer
            except ApiError as error:
                code = str(error.status)
                if attempt == self._attempts or not self._again(error):
                    raise
                pause = self._pause(attempt, error.retry_after)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if attempt == self._attempts:
                    raise Unreachable(f"{method} {path}: {error or type(error).__name__}") from error
                pause = self._pause(attempt, None)
            finally:
                self._observer.observe_request(verb, resource.plural, code, time.monotonic() - began)
            self._observer.observe_retry(code)
            await asyncio.sleep(pause)
        raise AssertionError("the loop returns or raises")

    async def _send(
        self, method: str, path: str, data: bytes | None, params: Mapping[str, str], headers: Mapping[str, str]
    ) -> Json:
        """One request, one answer. Tests put their faults here."""
        if self._session is None:
            raise RuntimeError("the client is used outside `opened()`")
        url = self._credentials.server + path
        sent = {**headers, **self._credentials.headers()}
        async with self._session.request(method, url, data=data, params=params, headers=sent) as response:
            payload = await response.read()
            if response.status >= 400:
                raise ApiError.parse(response.status, payload, response.headers.get("Retry-After"))
        decoded: Json = json.loads(payload)
        return decoded

    def _again(self, error: ApiError) -> bool:
        if error.status == 401:  # a service account's token is renewed on disk; the next attempt reads it
            return self._credentials.reload()
        return error.transient and "Too large resource version" not in error.message

    def _pause(self, attempt: int, retry_after: float | None) -> float:
        """Seconds before the next attempt: what the server asks for (at most 10), else doubling with jitter."""
        if retry_after is not None:
            return min(retry_after, 10.0)
        return 0.1 * 2.0**attempt * (0.5 + self._random.random())
