"""Where the API server is and how to prove who we are: the pod's service account, or a kubeconfig."""

from __future__ import annotations

import dataclasses
import logging
import os
import ssl
import time

import kopf

_logger = logging.getLogger(__name__)
_RELOAD_SECONDS = 60.0


class NoCredentials(Exception):
    """Neither a service account nor a readable kubeconfig."""


def find() -> kopf.ConnectionInfo:
    """The connection as kopf reads it; the service account wins inside a pod. Raises `NoCredentials`."""
    settings = kopf.OperatorSettings()
    try:
        pod = kopf.login_with_service_account(logger=_logger, settings=settings)
        found = pod or kopf.login_with_kubeconfig(logger=_logger, settings=settings)
    except (kopf.LoginError, OSError, ValueError) as error:
        raise NoCredentials(f"cannot read the credentials of the cluster: {error}") from error
    if found is None:
        raise NoCredentials("no cluster to talk to: run in a pod with a service account, or set KUBECONFIG")
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if pod is None or not host:
        return found
    # The injected address works before, and without, the cluster's DNS.
    return dataclasses.replace(found, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")


class Credentials:
    """The connection, read anew now and then because tokens on disk are rotated."""

    def __init__(self, info: kopf.ConnectionInfo | None = None) -> None:
        self._fixed = info is not None
        self._info = info or find()
        self._read_at = time.monotonic()

    @property
    def server(self) -> str:
        return self._info.server.rstrip("/")

    def headers(self) -> dict[str, str]:
        """The Authorization header, or none for client certificates."""
        if time.monotonic() - self._read_at > _RELOAD_SECONDS:
            self.reload()
        return self._info.as_http_headers()

    def ssl_context(self) -> ssl.SSLContext:
        return self._info.as_ssl_context()

    def reload(self) -> bool:
        """Read the credentials again; True when they have changed."""
        if self._fixed:
            return False
        before, self._info, self._read_at = self._info, find(), time.monotonic()
        return before.token != self._info.token
