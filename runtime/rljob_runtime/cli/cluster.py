"""Cluster: client of the cluster in the user's kubeconfig."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rljob_api.constants import LABEL_JOB, LABEL_ROLE, ROLE_COORDINATOR
from rljob_runtime.cli.files import Unusable

if TYPE_CHECKING:
    from rljob_kube.client import KubeClient

T = TypeVar("T")

_REQUEST_SECONDS = 10.0
NO_JOB = "is the CRD installed, and the name right?"
"""What may be wrong where the server has no such RLJob."""


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
        from rljob_kube.transport import RequestLimits

        try:
            connection = kubeconfig.load(kubeconfig.files())
        except NoCredentials as error:
            raise Unusable(f"no cluster: {error}; set KUBECONFIG to the file of a cluster") from None
        self.namespace = connection.namespace
        self._server = connection.server
        # One client for all requests: a plug-in signs the user in once.
        self._kube = KubeClient(Credentials(connection), limits=RequestLimits(seconds=_REQUEST_SECONDS, attempts=1))

    def rljob(self, namespace: str, name: str) -> dict[str, Any]:
        """Return the RLJob as the server stores it. Raises `NoAnswer`."""
        from rljob_kube.resources import RLJOB

        what = f"rljob/{name} in {namespace}"
        try:
            return self.ask(what, lambda kube: kube.get(RLJOB, namespace, name), NO_JOB)
        except RecursionError:
            raise NoAnswer(f"{what}: its spec is nested too deeply to be read") from None

    def secret(self, namespace: str, name: str) -> dict[str, Any]:
        """Return a Secret. Raises `NoAnswer`."""
        from rljob_kube.resources import SECRET

        return self.ask(
            f"secret/{name} in {namespace}", lambda kube: kube.get(SECRET, namespace, name), "the job has no pods yet"
        )

    def coordinator_pod(self, namespace: str, job: str) -> str:
        """Return the name of the job's running coordinator pod. Raises `NoAnswer`."""
        from rljob_kube.resources import POD

        labels = f"{LABEL_JOB}={job},{LABEL_ROLE}={ROLE_COORDINATOR}"
        pods = self.ask(f"pods of {job} in {namespace}", lambda kube: kube.list(POD, namespace, labels=labels))
        running = [pod["metadata"] for pod in pods if pod.get("status", {}).get("phase") == "Running"]
        if not running:
            raise NoAnswer(
                f"rljob/{job} in {namespace}: its coordinator does not run; read a copy of its volume instead"
            )
        return str(max(running, key=lambda metadata: metadata["creationTimestamp"])["name"])

    def proxied(self, namespace: str, target: str, path: str, headers: Mapping[str, str], absent: str = "") -> str:
        """Return what a pod serves, through the API server. `target`: name and port. Raises `NoAnswer`.

        `absent`: why the pod may serve no such path."""
        from rljob_kube.resources import POD

        url = f"{POD.path(namespace, target, 'proxy')}/{path}"
        return self.ask(f"pod {target} in {namespace}", lambda kube: kube.text(url, headers), absent)

    def ask(self, what: str, question: Callable[[KubeClient], Awaitable[T]], absent: str = "") -> T:
        """Return the answer. `absent`: what may be wrong if the server has no such object. Raises `NoAnswer`."""
        from rljob_kube.errors import ApiError, Unreachable

        async def ask() -> T:
            async with self._kube.opened():
                return await question(self._kube)

        try:
            return asyncio.run(ask())
        except ApiError as error:
            # Of a refused object, the message names the field; of a refused user, the missing right.
            told = error.message if error.status in (400, 403, 409, 422) else error.reason or error.message
            hint = absent if error.not_found and absent else told
            raise NoAnswer(f"{what}: {error.status}: {' '.join(hint.split())}") from None
        except Unreachable as error:
            raise NoAnswer(f"the cluster at {self._server}: {error}") from None
