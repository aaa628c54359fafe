"""API server of the coordinator: `rljob_kube`'s client with the errors of `protocols`. Each call is sent once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from rljob_api.constants import COORDINATOR_FIELD_MANAGER
from rljob_kube.client import KubeClient
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import Json, Resource
from rljob_kube.transport import OnRequest, RequestLimits, ignore
from rljob_runtime.protocols import PeerTimeout, Refused


class Conflict(Refused):
    """409: another client wrote first."""


class NotFound(Refused):
    """404: the object does not exist."""


class Expired(Refused):
    """410: the watch starts at a version that is too old; list again."""


class ApiClient:
    """The verbs that a coordinator needs.

    Raises `PeerTimeout` when the server cannot be reached or is overloaded, and `Refused` with the server's message
    when it refuses.
    """

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, credentials: Credentials, bound: float = 15.0, on_request: OnRequest = ignore
    ) -> AsyncIterator[ApiClient]:
        """Open a client whose calls end after `bound` seconds. `on_request`: see `rljob_kube.transport`."""
        kube = KubeClient(
            credentials,
            field_manager=COORDINATOR_FIELD_MANAGER,
            limits=RequestLimits(seconds=bound, attempts=1),
            on_request=on_request,
        )
        async with kube.opened():
            yield cls(kube)

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """Return one object."""
        with _in_protocol_errors(f"get {resource.path(namespace, name)}"):
            return await self._kube.get(resource, namespace, name)

    async def apply_status(self, resource: Resource, manifest: Json) -> Json:
        """Apply the manifest's status on the server. Forced: this client owns all its fields."""
        with _in_protocol_errors(f"apply {resource.plural} {manifest['metadata']['name']}"):
            return await self._kube.apply(resource, manifest, subresource="status")

    async def replace(self, resource: Resource, manifest: Json) -> Json:
        """Replace one object. Raises `Conflict` when the manifest's resourceVersion is not the newest."""
        with _in_protocol_errors(f"replace {resource.plural} {manifest['metadata']['name']}"):
            return await self._kube.replace(resource, manifest)

    async def watch(
        self, resource: Resource, namespace: str, name: str, version: str, seconds: int
    ) -> AsyncIterator[Json]:
        """Yield one object each time it changes after `version`, for at most `seconds`.

        Raises `Expired` when the version is too old.
        """
        fields = f"metadata.name={name}"
        with _in_protocol_errors(f"watch {resource.path(namespace, name)}"):
            async for _, found in self._kube.watch(resource, namespace, version, seconds, fields=fields):
                yield found


@contextmanager
def _in_protocol_errors(call: str) -> Iterator[None]:
    try:
        yield
    except Unreachable as error:
        raise PeerTimeout(f"{call}: {error}") from error
    except ApiError as error:
        text = f"{call}: {error.status} {error.message}"
        if error.status == 429 or error.status >= 500:
            raise PeerTimeout(text) from error
        raise {404: NotFound, 409: Conflict, 410: Expired}.get(error.status, Refused)(text) from error
