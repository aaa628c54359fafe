"""Proxy key: the key by which the runners of one environment use the job's egress proxy.

Foreign code in a runner reads it, because its own programs use the proxy. So it is no runner key: it opens the hosts of
its environment, and nothing at the gateway.
"""

from __future__ import annotations

from rljob_api.keys.signed_text import sign, verify_text

PREFIX = "rlp1"


def mint_proxy_key(key: bytes, environment: str) -> str:
    """Return the proxy key of an environment."""
    return sign(key, PREFIX, environment.encode())


def verify_proxy_key(key: bytes, text: str) -> str:
    """Return the environment that a proxy key opens hosts for. Raises `KeyRefused`."""
    return verify_text(key, PREFIX, text).decode()
