"""Client of the API server: reads, watches, creates, deletes, merge patches and server-side applies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import Json, Resource
from rljob_kube.transport import JSON, Transport

_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_MERGE = "application/merge-patch+json"
_METADATA = "application/json;as={};g=meta.k8s.io;v=v1"
T = TypeVar("T")
Kept = list[T]
Items = Kept[Json]
ANY_VERSION = "1"
"""A resource version that every cache has passed. "0" has the same meaning, but a server ignores the limit with it."""
_LISTS = 3
"""Attempts at a list whose version the server drops between two pages."""


class KubeClient(Transport):
    """The verbs of one API server. Raises `ApiError` for an answer of 400 and above, `Unreachable` for none."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """Return one object."""
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
        """Return all items of a collection, complete (see `read`)."""
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
        """Return `keep(item)` of each item of a collection.

        The items come in pages of one version: at most one page is in memory. `not_older_than` is a resource version:
        the answer may come from a cache of the server that is at least as fresh (`ANY_VERSION`: any cache). When the
        server drops the version between two pages, the list starts again, at most `_LISTS` times.
        """
        found, _ = await self.read_with_version(
            resource,
            namespace,
            keep,
            labels=labels,
            not_older_than=not_older_than,
            metadata_only=metadata_only,
        )
        return found

    async def read_with_version(
        self,
        resource: Resource,
        namespace: str | None,
        keep: Callable[[Json], T],
        *,
        labels: str = "",
        fields: str = "",
        not_older_than: str | None = None,
        metadata_only: bool = False,
    ) -> tuple[Kept[T], str]:
        """Return what `read` returns, and the resource version from which a watch continues.

        `labels` and `fields` are selectors.
        """
        params = {"limit": str(resource.page), **_selectors(labels, fields)}
        if not_older_than is not None:
            params |= {"resourceVersion": not_older_than, "resourceVersionMatch": "NotOlderThan"}
        accept = _METADATA.format("PartialObjectMetadataList") if metadata_only else JSON
        for attempt in range(1, _LISTS + 1):
            try:
                return await self._pages(resource, resource.path(namespace), params, accept, keep)
            except ApiError as error:
                if not error.expired or attempt == _LISTS:
                    raise
        raise AssertionError("unreachable")

    async def _pages(
        self, resource: Resource, path: str, params: dict[str, str], accept: str, keep: Callable[[Json], T]
    ) -> tuple[Kept[T], str]:
        """Return all pages of a list. Raises ApiError 410 when their version is gone before the last one."""
        found: Kept[T] = []
        while True:
            answer = await self._request("list", resource, "GET", path, params=params, accept=accept)
            found += map(keep, answer.get("items") or [])
            token = answer.get("metadata", {}).get("continue")
            if not token:
                return found, str(answer.get("metadata", {}).get("resourceVersion", ""))
            del answer  # before the next page comes
            kept = {name: value for name, value in params.items() if not name.startswith("resourceVersion")}
            params = kept | {"continue": token}  # in place of the last page's

    async def watch(
        self,
        resource: Resource,
        namespace: str | None,
        version: str,
        seconds: int,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[tuple[str, Json]]:
        """Yield (type, object) of each event after the resource version `version`, for at most `seconds`.

        `labels` and `fields` are selectors. Raises ApiError 410 when the version is gone: list again, and watch from
        there.
        """
        params = {"watch": "true", "timeoutSeconds": str(seconds), "resourceVersion": version}
        params |= _selectors(labels, fields)
        accept = _METADATA.format("PartialObjectMetadata") if metadata_only else JSON
        path = resource.path(namespace)
        try:
            async with self._stream(resource, path, params, accept, seconds) as response:
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError.of_status(event["object"])
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]
        except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError, LookupError) as error:
            raise Unreachable(f"watch of {path}: {error!r}") from error

    async def text(self, path: str, headers: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the text that the server serves at `path`, as /metrics or a pod's proxy. The request is sent once."""
        try:
            with self._counted("get", path.rpartition("/")[2]):
                async with await self._open("GET", path, {}, {"Accept": "*/*", **headers}) as response:
                    return await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"GET {path}: {error!r}") from error

    async def lines(self, path: str, params: Mapping[str, str], seconds: int) -> AsyncIterator[str]:
        """Yield the lines that the server sends at `path` for at most `seconds`, as the log of a container."""
        resource = Resource("", "", "", path.rpartition("/")[2])
        try:
            async with self._stream(resource, path, params, "*/*", seconds) as response:
                async for line in response.content:
                    yield line.decode(errors="replace").rstrip("\n")
        except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError) as error:
            raise Unreachable(f"GET {path}: {error!r}") from error

    async def create(self, resource: Resource, manifest: Mapping[str, Any]) -> Json:
        """Create an object."""
        path = resource.path(manifest["metadata"].get("namespace"))
        params = {"fieldManager": self._field_manager}
        return await self._request("create", resource, "POST", path, manifest, params=params)

    async def replace(self, resource: Resource, manifest: Mapping[str, Any]) -> Json:
        """Replace an object. The manifest's resourceVersion is the precondition: Conflict if it is not the newest."""
        meta = manifest["metadata"]
        path = resource.path(meta.get("namespace"), meta["name"])
        return await self._request("update", resource, "PUT", path, manifest)

    async def apply(self, resource: Resource, manifest: Mapping[str, Any], *, subresource: str | None = None) -> Json:
        """Apply on the server: this client then owns the manifest's fields.

        A field that it owned, and that the manifest leaves out, is removed.
        """
        meta = manifest["metadata"]
        path = resource.path(meta.get("namespace"), meta["name"], subresource)
        params = {"fieldManager": self._field_manager, "force": "true"}
        return await self._request("patch", resource, "PATCH", path, manifest, params=params, content_type=_APPLY)

    async def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str | None = None,
    ) -> Json:
        """Merge `patch` into an object; null removes a field."""
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
        """Delete the object if it still has this `uid` (Conflict otherwise).

        An object that does not exist is no error. `grace_seconds` 0 deletes a pod immediately, without its kubelet.
        """
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
        """Return one object, None if it does not exist."""
        try:
            return await self.get(resource, namespace, name)
        except ApiError as error:
            if not error.not_found:
                raise
            return None

    async def serves(self, group: str, version: str, plural: str | None = None) -> bool:
        """Return whether the API server serves this version of an API group, and in it `plural` (discovery)."""
        resources = Resource("APIResourceList", group, version, "apis")
        try:
            found = await self._request("get", resources, "GET", f"/apis/{group}/{version}")
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return plural is None or any(one["name"] == plural for one in found.get("resources") or [])


def _selectors(labels: str, fields: str) -> dict[str, str]:
    given = {"labelSelector": labels, "fieldSelector": fields}
    return {name: selector for name, selector in given.items() if selector}
