"""Kubernetes client of the cluster tool: JSON over keep-alive HTTPS, in the standard library alone.

`rljob_kube` is the client of everything else. This tool runs where nothing is installed: on the nodes that it makes."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .settings import ClusterError

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
_TRIES = 20


class ApiError(Exception):
    """An answer of 300 or above, or (``status`` 0) none at all."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message[:300]}")
        self.status = status
        self.answer = message
        """The whole answer."""


class Api:
    """One API server, as the user of a kubeconfig written by :mod:`pki`. Safe for threads: a connection each."""

    def __init__(self, kubeconfig: Path, timeout: float = 10) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.server: str = cluster["server"]
        self.authority: str = base64.b64decode(cluster["certificate-authority-data"]).decode()
        address = urllib.parse.urlsplit(self.server)
        if not address.hostname or not address.port:
            raise ClusterError(f"{kubeconfig}: the server {self.server!r} has no host or no port")
        self.host, self.port = address.hostname, address.port
        self._headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        self._tls = ssl.create_default_context(cadata=self.authority)
        self._timeout = timeout
        self._local = threading.local()

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.host, self.port, context=self._tls, timeout=timeout)

    def text(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> str:
        """Return the answer's body. Raises ApiError.

        A call for which a server is not ready yet (429) is repeated.
        """
        payload = None if body is None else json.dumps(body)
        for _ in range(_TRIES):
            try:
                return self._ask(method, path, payload, content_type)
            except ApiError as error:
                if error.status != 429:
                    raise
            time.sleep(1.0)
        return self._ask(method, path, payload, content_type)

    def _ask(self, method: str, path: str, payload: str | None, content_type: str) -> str:
        """Return the answer to one call. A broken connection is opened again once."""
        for attempt in (1, 2):
            connection = getattr(self._local, "connection", None) or self._connect(self._timeout)
            self._local.connection = connection
            try:
                connection.request(method, path, payload, {**self._headers, "Content-Type": content_type})
                response = connection.getresponse()
                data = response.read().decode(errors="replace")
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._local.connection = None
                if attempt == 2:
                    raise ApiError(0, f"{method} {path}: {error!r}") from error
        if response.status >= 300:
            raise ApiError(response.status, data)
        return data

    def call(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
        return json.loads(self.text(method, path, body, content_type))

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def find(self, path: str) -> Any | None:
        """Return the object, or None when there is none of that name."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def apply(self, path: str, body: Mapping[str, Any]) -> Any:
        """Server-side apply under the name of this tool."""
        return self.call("PATCH", f"{path}?fieldManager=rljob-cluster&force=true", body, APPLY)

    def watch(self, path: str, version: str, seconds: int = 50) -> Iterator[dict[str, Any]]:
        """Events after ``version``, for at most ``seconds``; ends early when the server says the version is gone."""
        connection = self._connect(seconds + 10)
        try:
            joint = "&" if "?" in path else "?"
            query = f"{joint}watch=1&timeoutSeconds={seconds}&resourceVersion={version}"
            connection.request("GET", path + query, headers=self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ApiError(response.status, response.read().decode(errors="replace"))
            for line in response:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"watch {path}: {error!r}") from error
        finally:
            connection.close()


def wait(what: str, timeout: float, check: Callable[[], bool], why: Callable[[], str] = lambda: "") -> None:
    """Poll ``check`` until it holds; API errors count as not yet. Raises ClusterError after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    last = ""
    while True:
        try:
            if check():
                return
        except ApiError as error:
            last = str(error)
        if time.monotonic() > end:
            raise ClusterError(f"{what} did not happen within {timeout:.0f} s {last} {why()}")
        time.sleep(0.1)


def node_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
