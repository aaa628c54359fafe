"""Connection: the address of an API server, the trust in it, and the user's identity."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rljob_kube.exec_plugin import ExecPlugin

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoCredentials(Exception):
    """No API server is configured, or no usable identity. The message says what to change."""


@dataclass(frozen=True)
class ClientCertificate:
    """A client certificate and its private key, both in PEM."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True)
class Connection:
    """An API server and an identity.

    At most one kind of identity is in use: token file, token, user and password, certificate, plug-in, in this order.
    """

    server: str
    authority: str | None = None
    """Certificates of the authority, in PEM. None: the authorities that the system trusts."""
    insecure: bool = False
    """Accept any certificate of the server."""
    server_name: str | None = None
    """The name in the server's certificate, if it is not the host of `server`."""
    proxy: str | None = None
    namespace: str = "default"
    token_file: Path | None = None
    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    certificate: ClientCertificate | None = None
    plugin: ExecPlugin | None = None


def in_cluster(account: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> Connection:
    """Return the connection of a pod's service account. Raises `NoCredentials` outside a pod."""
    token = account / "token"
    if not token.exists():
        raise NoCredentials(f"no service account: {token} does not exist")
    # The injected address works before the cluster's DNS, and without it.
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    address = "kubernetes.default.svc" if not host else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    authority, namespace = account / "ca.crt", account / "namespace"
    try:
        return Connection(
            f"https://{address}",
            authority=authority.read_text() if authority.exists() else None,
            namespace=namespace.read_text().strip() if namespace.exists() else "default",
            token_file=token,
        )
    except (OSError, ValueError) as error:
        raise NoCredentials(f"the service account cannot be read: {error}") from error


def tls_context(connection: Connection, certificate: ClientCertificate | None) -> ssl.SSLContext:
    """Return what verifies the server and shows the client's certificate.

    Raises `NoCredentials` for a certificate or key that cannot be used.
    """
    try:
        context = ssl.create_default_context(cadata=connection.authority)
    except (ssl.SSLError, ValueError) as error:
        raise NoCredentials(f"the certificate authority of {connection.server} cannot be used: {error}") from error
    if connection.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        # Python loads a key from a file only.
        with tempfile.NamedTemporaryFile("w", prefix="rljob-", suffix=".pem") as file:
            file.write(f"{certificate.certificate.strip()}\n{certificate.key.strip()}\n")
            file.flush()
            try:
                context.load_cert_chain(file.name, password=_no_password)
            except (ssl.SSLError, ValueError, OSError) as error:
                raise NoCredentials(f"the client certificate or its key cannot be used: {error}") from error
    return context


def _no_password() -> str:
    """Refuse to ask for a password: OpenSSL would wait for it at the terminal."""
    raise ValueError("the key is encrypted; store it without a password")
