"""Runner key: the key by which the runners of one environment lease its episodes and report their ends.

It names its environment, so a runner leases no episode of another. It has a key of its own, derived from the job's
secret: no runner key is a capability, and no capability a runner key.
"""

from __future__ import annotations

from rljob_api.keys.signed_text import derived_key, sign, verify_text

PREFIX = "rlr1"


def runners_key(secret: bytes) -> bytes:
    """Return the key of runner keys."""
    return derived_key(secret, b"runners")


def mint_runner_key(key: bytes, environment: str) -> str:
    """Return the runner key of an environment."""
    return sign(key, PREFIX, environment.encode())


def verify_runner_key(key: bytes, text: str) -> str:
    """Return the environment that a runner key opens. Raises `KeyRefused`."""
    return verify_text(key, PREFIX, text).decode()
