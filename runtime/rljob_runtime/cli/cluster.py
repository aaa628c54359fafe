"""Cluster: client of the cluster in the user's kubeconfig."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rljob_runtime.cli.files import Unusable

if TYPE_CHECKING:
    from rljob_kube.client import KubeClient

_REQUEST_SECONDS = 10.0


class NoAnswer(Exception):
    """The API server is unreachable or refuses; the message gives the reason."""


class Cluster:
    """Current context of the kubeconfig. Raises `Unusable` if there is none."""

    def __init__(self) -> None:
        # Imported here, because the import takes a quarter of a second.
        from rljob_kube import kubeconfig
        from rljob_kube.client import KubeClient
        from rljob_kube.connection import NoCredentials
        from rljob_kube.credentials import Credentials

        try:
            connection = kubeconfig.load(kubeconfig.files())
        except NoCredentials as error:
            raise Unusable(f"no cluster: {error}") from None
        self.namespace = connection.namespace
        self._server = connection.server
        # One client for all requests: a plug-in signs the user in once.
        self._kube = KubeClient(Credentials(connection), request_seconds=_REQUEST_SECONDS, attempts=1)

    def rljob(self, namespace: str, name: str) -> dict[str, Any]:
        """Return the RLJob as the server stores it. Raises `NoAnswer`."""
        from rljob_kube.errors import ApiError, Unreachable

        try:
            return asyncio.run(_read(self._kube, namespace, name))
        except ApiError as error:
            hint = "is the CRD installed, and the name right?" if error.not_found else error.reason or error.message
            raise NoAnswer(f"rljob/{name} in {namespace}: {error.status}: {hint}") from None
        except RecursionError:
            raise NoAnswer(f"rljob/{name} in {namespace}: its spec is nested too deeply to be read") from None
        except Unreachable as error:
            raise NoAnswer(f"the cluster at {self._server}: {error}") from None


async def _read(kube: KubeClient, namespace: str, name: str) -> dict[str, Any]:
    from rljob_kube.resources import RLJOB

    async with kube.opened():
        return await kube.get(RLJOB, namespace, name)
