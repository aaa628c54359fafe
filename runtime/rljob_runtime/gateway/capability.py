"""Capability: the key that an agent gets, for one attempt of one episode.

An agent runs foreign code, and the model's own words can reach its environment. So the key opens nothing but the turns
of its attempt, and ends with it: at its expiry here, and at the attempt's end by the coordinator's answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.keys.signed_text import KeyRefused, Refusal, derived_key, sign, verify_text
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt

PREFIX = "rlj1"


@dataclass(frozen=True)
class Capability:
    """The right to ask for turns of one attempt. It ends at `expires`, in whole seconds of the epoch."""

    episode: EpisodeAttempt
    expires: int


def gateway_key(secret: bytes) -> bytes:
    """Return the key of capabilities."""
    return derived_key(secret, b"gateway")


def mint(key: bytes, capability: Capability) -> str:
    """Return the text of a capability."""
    episode = capability.episode
    resumed = f".{episode.resumption}" if episode.resumption else ""
    claim = f"{episode.key} {episode.attempt}{resumed} {capability.expires}"
    return sign(key, PREFIX, claim.encode())


def verify(key: bytes, text: str, now: float, episode: str | None = None) -> Capability:
    """Return the capability that a text states. `episode`: that of the request's address, where it names one.

    Raises `KeyRefused`.
    """
    name, attempt, expires = verify_text(key, PREFIX, text).decode().rsplit(" ", 2)
    number, _, resumption = attempt.partition(".")
    found = EpisodeAttempt(TrajectoryKey.parse(name), int(number), int(resumption or 0))
    capability = Capability(found, int(expires))
    if now >= capability.expires:
        raise KeyRefused(Refusal.EXPIRED)
    if episode is not None and episode != name:
        raise KeyRefused(Refusal.OTHER_EPISODE)
    return capability
