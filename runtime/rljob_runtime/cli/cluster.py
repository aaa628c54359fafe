"""Cluster: client of the cluster in the user's kubeconfig."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api import InvalidSpec, constants
from rljob_api.parsing import yaml_text
from rljob_runtime.cli.files import Unusable, read_text

if TYPE_CHECKING:
    from kubernetes.client import CustomObjectsApi

_REQUEST_SECONDS = 10


class NoAnswer(Exception):
    """The API server is unreachable or refuses; the message gives the reason."""


class Cluster:
    """Current context of the kubeconfig. Raises `Unusable` if there is none."""

    def __init__(self) -> None:
        from kubernetes import client, config  # imported here, because the import takes half a second

        _check_kubeconfigs()
        try:
            # Passed here, because the client reads $KUBECONFIG only once, at import.
            config.load_kube_config(config_file=_kubeconfigs())
            context: dict[str, Any] = config.list_kube_config_contexts(config_file=_kubeconfigs())[1]["context"]
        except config.ConfigException as error:
            raise Unusable(f"no cluster: {error}") from None
        self.namespace: str = context.get("namespace") or "default"
        self._api: CustomObjectsApi = client.CustomObjectsApi()

    def rljob(self, namespace: str, name: str) -> dict[str, Any]:
        """Return the RLJob as the server stores it. Raises `NoAnswer`."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            found: Any = self._api.get_namespaced_custom_object(
                constants.GROUP, constants.VERSION, namespace, constants.PLURAL, name, _request_timeout=_REQUEST_SECONDS
            )
        except ApiException as error:
            hint = "is the CRD installed, and the name right?" if error.status == 404 else str(error.reason)
            raise NoAnswer(f"rljob/{name} in {namespace}: {error.status}: {hint}") from None
        except RecursionError:
            raise NoAnswer(f"rljob/{name} in {namespace}: its spec is nested too deeply to be read") from None
        except HTTPError as error:
            raise NoAnswer(f"the cluster at {self._api.api_client.configuration.host}: {error}") from None
        return dict(found)


def _kubeconfigs() -> str:
    """Return the files' names in kubectl's format."""
    return os.environ.get("KUBECONFIG", "~/.kube/config")


def _check_kubeconfigs() -> None:
    """Raise `Unusable` for a file that is not a YAML object, for which the client would print a traceback.

    The client itself reports missing files.
    """
    for name in _kubeconfigs().split(os.pathsep):
        file = Path(name).expanduser()
        if not name or not file.exists():
            continue
        try:
            found = yaml_text.documents(read_text(file))
        except InvalidSpec as error:
            raise Unusable(f"{file}: {error}") from None
        wrong = next((one for one in found if not isinstance(one, dict | None)), None)
        if wrong is not None or len(found) > 1:
            content = repr(wrong) if wrong is not None else f"{len(found)} documents"
            raise Unusable(f"{file}: holds {content:.40}; must be a kubeconfig")
