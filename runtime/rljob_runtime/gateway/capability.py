"""Capability: the key that an agent gets, for one attempt of one episode.

An agent runs foreign code, and the model's own words can reach its environment. So the key opens nothing but the turns
of its attempt, and ends with it: at its expiry here, and at the attempt's end by the coordinator's answer.

    rlj1.<claim>.<HMAC-SHA256 of the claim>      both in URL-safe base64
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum

from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt

PREFIX = "rlj1"
MOST_CHARACTERS = 1024
"""Longest key that is looked at. A source's name is far shorter."""


@dataclass(frozen=True)
class Capability:
    """The right to ask for turns of one attempt. It ends at `expires`, in whole seconds of the epoch."""

    episode: EpisodeAttempt
    expires: int


class Refusal(StrEnum):
    """Why a key is refused. The values stand in messages."""

    MISSING = "the request has no bearer key"
    MALFORMED = "the bearer key is not a key of this gateway"
    FORGED = "the bearer key was not made for this job"
    EXPIRED = "the bearer key has expired: its attempt is over"
    OTHER_EPISODE = "the bearer key is that of another episode"


class CapabilityRefused(Exception):
    """A key opens nothing."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def gateway_key(secret: bytes) -> bytes:
    """Derive the key of capabilities from a job's secret, which it does not reveal."""
    return hmac.new(secret, b"rljob gateway", hashlib.sha256).digest()


def mint(key: bytes, capability: Capability) -> str:
    """Return the text of a capability."""
    claim = f"{capability.episode.key} {capability.episode.attempt} {capability.expires}".encode()
    return ".".join((PREFIX, _text(claim), _text(_signature(key, claim))))


def verify(key: bytes, text: str, now: float, episode: str | None = None) -> Capability:
    """Return the capability that a text states. `episode`: that of the request's address, where it names one.

    Raises `CapabilityRefused`. Nothing of a claim is read before its signature is right.
    """
    if not text:
        raise CapabilityRefused(Refusal.MISSING)
    claim, signature = _parts(text)
    if not hmac.compare_digest(signature, _signature(key, claim)):
        raise CapabilityRefused(Refusal.FORGED)
    name, attempt, expires = claim.decode().rsplit(" ", 2)
    capability = Capability(EpisodeAttempt(TrajectoryKey.parse(name), int(attempt)), int(expires))
    if now >= capability.expires:
        raise CapabilityRefused(Refusal.EXPIRED)
    if episode is not None and episode != name:
        raise CapabilityRefused(Refusal.OTHER_EPISODE)
    return capability


def _parts(text: str) -> tuple[bytes, bytes]:
    """Return claim and signature of a text. Only the text that `mint` writes for them is taken."""
    pieces = text.split(".") if len(text) <= MOST_CHARACTERS else []
    if len(pieces) != 3 or pieces[0] != PREFIX:
        raise CapabilityRefused(Refusal.MALFORMED)
    try:
        claim, signature = (base64.b64decode(piece + "=" * (-len(piece) % 4), b"-_", True) for piece in pieces[1:])
    except (binascii.Error, ValueError) as error:
        raise CapabilityRefused(Refusal.MALFORMED) from error
    if [_text(claim), _text(signature)] != pieces[1:]:
        raise CapabilityRefused(Refusal.MALFORMED)
    return claim, signature


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _signature(key: bytes, claim: bytes) -> bytes:
    return hmac.new(key, claim, hashlib.sha256).digest()
