"""Credentials: what proves the user's identity to the API server, renewed before it expires and when it is refused."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rljob_kube import kubeconfig
from rljob_kube.connection import SERVICE_ACCOUNT, ClientCertificate, Connection, NoCredentials, in_cluster, tls_context
from rljob_kube.exec_plugin import ExecCredential, PluginFailed, run_plugin

RELOAD_SECONDS = 60.0
"""Seconds between two reads of a token file or of a kubeconfig: others rewrite them."""


def find_connection(environment: Mapping[str, str] = os.environ) -> Connection:
    """Return the connection of this process: inside a pod the service account's, else the kubeconfig's.

    Raises `NoCredentials`.
    """
    if (SERVICE_ACCOUNT / "token").exists():
        return in_cluster(environment=environment)
    try:
        return kubeconfig.load(kubeconfig.files(environment))
    except NoCredentials as error:
        raise NoCredentials(f"{error}: run in a pod with a service account, or set KUBECONFIG") from None


@dataclass(frozen=True)
class Access:
    """The identity as one request shows it."""

    headers: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | bool
    token: str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = None
    expires: datetime | None = None


class Credentials:
    """The identity of a connection. `Credentials()` finds the connection and looks for a new one now and then."""

    def __init__(
        self,
        connection: Connection | None = None,
        *,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._found = connection is None
        self.connection = connection or find_connection()
        self._wall = wall
        self._clock = clock
        self._access: Access | None = None
        self._read_at = 0.0
        self._renewing = asyncio.Lock()
        self._tls: tuple[object, ssl.SSLContext] | None = None

    @property
    def server(self) -> str:
        """The address of the API server, without a slash at its end."""
        return self.connection.server.rstrip("/")

    async def access(self) -> Access:
        """Return the identity, renewed where it has expired. Raises `NoCredentials`."""
        if (access := self._valid()) is not None:
            return access
        async with self._renewing:
            # Another request may have renewed it in the meantime.
            return self._valid() or await self._renew()

    async def renew(self, refused: Access) -> bool:
        """Renew after an answer of 401 to `refused`. Return True where there is another identity to try.

        Raises `NoCredentials`.
        """
        async with self._renewing:
            before = self._access if self._access is not None and self._access is not refused else None
            after = before or await self._renew()
            return (after.token, after.certificate) != (refused.token, refused.certificate)

    def _valid(self) -> Access | None:
        access = self._access
        if access is None or (access.expires is not None and self._wall() >= access.expires):
            return None
        if self._is_read_again and self._clock() - self._read_at > RELOAD_SECONDS:
            return None
        return access

    @property
    def _is_read_again(self) -> bool:
        connection = self.connection
        return connection.token_file is not None or (self._found and connection.plugin is None)

    async def _renew(self) -> Access:
        if self._found:
            # A kubeconfig may name another user by now.
            self.connection = find_connection()
        self._read_at = self._clock()
        connection = self.connection
        found = ExecCredential(_token(connection))
        certificate = connection.certificate
        if connection.plugin is not None and found.token is None and certificate is None:
            try:
                found = await run_plugin(connection.plugin)
            except PluginFailed as error:
                raise NoCredentials(str(error)) from None
            if found.certificate is not None and found.key is not None:
                certificate = ClientCertificate(found.certificate, found.key)
        self._access = Access(
            _headers(connection, found.token), self._context(certificate), found.token, certificate, found.expires
        )
        return self._access

    def _context(self, certificate: ClientCertificate | None) -> ssl.SSLContext | bool:
        """Return the TLS context: the same one for the same trust and certificate, so that connections are reused."""
        if not self.server.startswith("https:"):
            return True
        key = (self.connection.authority, self.connection.insecure, certificate)
        if self._tls is None or self._tls[0] != key:
            self._tls = (key, tls_context(self.connection, certificate))
        return self._tls[1]


def _token(connection: Connection) -> str | None:
    if connection.token_file is None:
        return connection.token
    try:
        return connection.token_file.read_text().strip()
    except (OSError, ValueError) as error:
        raise NoCredentials(f"{connection.token_file}: the token cannot be read: {error}") from error


def _headers(connection: Connection, token: str | None) -> dict[str, str]:
    if token is not None:
        return {"Authorization": f"Bearer {token}"}
    if connection.username is not None and connection.password is not None:
        pair = base64.b64encode(f"{connection.username}:{connection.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    return {}
