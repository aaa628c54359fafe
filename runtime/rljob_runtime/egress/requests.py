"""Requests: what a client asks of an HTTP proxy, from the head of its request.

CONNECT asks for a tunnel, and a request with a whole http:// URL for a page. Everything else is refused.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import urlsplit

from rljob_runtime.egress.rules import is_port

_OF_A_HOP = frozenset(
    (
        *("connection", "proxy-connection", "proxy-authorization", "proxy-authenticate", "keep-alive", "te"),
        *("host", "upgrade", "expect"),
    )
)
"""Headers that concern the connection to the proxy, and those that the proxy writes itself."""


class BadRequest(ValueError):
    """A request that no proxy answers. The message says what is wrong."""


@dataclass(frozen=True)
class ProxyRequest:
    """`forwarded`: the head of the request for the server; empty for a tunnel. `key`: the client's, perhaps empty."""

    host: str
    port: int
    key: str
    forwarded: bytes = b""

    @property
    def tunnel(self) -> bool:
        """Tell whether the client asks for a tunnel."""
        return not self.forwarded


def parse_request(head: bytes) -> ProxyRequest:
    """Parse the head of a request, with the empty line at its end. Raises `BadRequest`."""
    try:
        first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    except UnicodeDecodeError as error:
        raise BadRequest("the head has other characters than ASCII") from error
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest("the first line is no request of HTTP/1.1")
    method, target, _ = parts
    headers = [_header(line) for line in lines]
    key = next((_password(value) for name, value in headers if name.lower() == "proxy-authorization"), "")
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        return ProxyRequest(host, _port(port), key)
    try:
        url = urlsplit(target)
        host, port_number = url.hostname or "", url.port or 80
    except ValueError as error:
        raise BadRequest(f"the URL cannot be read: {error}") from error
    if url.scheme != "http" or not host or "@" in url.netloc:
        raise BadRequest("a proxy takes CONNECT, and http:// URLs without a user")
    path = url.path or "/"
    lines = [
        f"{method} {path}{'?' + url.query if url.query else ''} HTTP/1.1",
        f"Host: {url.netloc}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers if name.lower() not in _OF_A_HOP),
    ]
    return ProxyRequest(host, port_number, key, "\r\n".join((*lines, "", "")).encode())


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip() or any(sign in line for sign in "\r\n\0"):
        raise BadRequest("a line of the head is no header")
    return name, value.strip()


def _port(text: str) -> int:
    if not is_port(text):
        raise BadRequest("CONNECT needs a host and a port")
    return int(text)


def _password(value: str) -> str:
    """Return the password of basic authentication; empty where there is none."""
    scheme, _, text = value.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(text.strip(), validate=True).decode("ascii").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
