"""Signed text: a claim with its signature, as a bearer key.

<prefix>.<claim>.<HMAC-SHA256 of the claim>      claim and signature in URL-safe base64
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from enum import StrEnum

MOST_CHARACTERS = 1024
"""Longest key that is looked at. The name of a source or of an environment is far shorter."""


class Refusal(StrEnum):
    """The reason for which a key is refused. The values stand in messages."""

    MISSING = "the request has no bearer key"
    MALFORMED = "the bearer key is not a key of this gateway"
    FORGED = "the bearer key was not made for this job"
    EXPIRED = "the bearer key has expired: its attempt is over"
    OTHER_EPISODE = "the bearer key is that of another episode"


class KeyRefused(Exception):
    """A key opens nothing."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def derived_key(secret: bytes, purpose: bytes) -> bytes:
    """Derive the key of one purpose from a job's secret, which it does not reveal."""
    return hmac.new(secret, b"rljob " + purpose, hashlib.sha256).digest()


def sign(key: bytes, prefix: str, claim: bytes) -> str:
    """Return the text of a claim."""
    return ".".join((prefix, _text(claim), _text(_signature(key, claim))))


def verify_text(key: bytes, prefix: str, text: str) -> bytes:
    """Return the claim of a text. Raises `KeyRefused`. Nothing of a claim is read before its signature is right."""
    if not text:
        raise KeyRefused(Refusal.MISSING)
    claim, signature = _parts(prefix, text)
    if not hmac.compare_digest(signature, _signature(key, claim)):
        raise KeyRefused(Refusal.FORGED)
    return claim


def _parts(prefix: str, text: str) -> tuple[bytes, bytes]:
    """Return claim and signature of a text. Only the text that `sign` writes for them is taken."""
    pieces = text.split(".") if len(text) <= MOST_CHARACTERS else []
    if len(pieces) != 3 or pieces[0] != prefix:
        raise KeyRefused(Refusal.MALFORMED)
    try:
        claim, signature = (base64.b64decode(piece + "=" * (-len(piece) % 4), b"-_", True) for piece in pieces[1:])
    except (binascii.Error, ValueError) as error:
        raise KeyRefused(Refusal.MALFORMED) from error
    if [_text(claim), _text(signature)] != pieces[1:]:
        raise KeyRefused(Refusal.MALFORMED)
    return claim, signature


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _signature(key: bytes, claim: bytes) -> bytes:
    return hmac.new(key, claim, hashlib.sha256).digest()
