"""kopf login: the client's identity in kopf's form."""

from __future__ import annotations

import base64

import kopf

from rljob_kube.connection import Connection
from rljob_kube.credentials import Access, Credentials


class KopfLogin:
    """Logs kopf in. kopf calls it again when the API server refuses the last identity, or when that expires."""

    def __init__(self, connection: Connection | None = None) -> None:
        self._credentials = Credentials(connection)
        self._shown: Access | None = None

    async def connect(self) -> kopf.ConnectionInfo:
        """Return an identity; at the second call and later, a renewed one. Raises `NoCredentials`."""
        if self._shown is not None:
            await self._credentials.renew(self._shown)
        self._shown = await self._credentials.access()
        return _for_kopf(self._credentials.connection, self._shown)


def _for_kopf(connection: Connection, access: Access) -> kopf.ConnectionInfo:
    """Return the identity in kopf's form. It takes PEM in base64."""
    authority, certificate = connection.authority, access.certificate
    return kopf.ConnectionInfo(
        server=connection.server,
        ca_data=_base64(authority) if authority is not None else None,
        insecure=connection.insecure,
        username=connection.username,
        password=connection.password,
        token=access.token,
        certificate_data=_base64(certificate.certificate) if certificate is not None else None,
        private_key_data=_base64(certificate.key) if certificate is not None else None,
        default_namespace=connection.namespace,
        proxy_url=connection.proxy,
        expiration=access.expires,
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
