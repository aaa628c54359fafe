"""A capability opens one attempt of one episode until it expires. Any other text opens nothing, and says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.keys.signed_text import KeyRefused, Refusal
from rljob_runtime.gateway.capability import Capability, gateway_key, mint, verify
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt

KEY = gateway_key(b"the job's secret")
counts = st.integers(0, 10**9)
sources = st.one_of(st.just(""), st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=20))
capabilities = st.builds(
    Capability,
    st.builds(EpisodeAttempt, st.builds(TrajectoryKey, st.builds(PromptKey, counts, counts, sources), counts), counts),
    st.integers(1, 2**40),
)
ONE = Capability(EpisodeAttempt(TrajectoryKey(PromptKey(0, 3), 1), 2), 1000)


def refusal(text: str, now: float = 0.0, episode: str | None = None, key: bytes = KEY) -> Refusal:
    with pytest.raises(KeyRefused) as caught:
        verify(key, text, now, episode)
    return caught.value.refusal


@given(capabilities)
def test_a_capability_is_what_was_minted(capability: Capability) -> None:
    text = mint(KEY, capability)
    assert verify(KEY, text, capability.expires - 1, str(capability.episode.key)) == capability
    assert refusal(text, capability.expires) is Refusal.EXPIRED


@given(capabilities, capabilities)
def test_a_capability_opens_its_own_episode_only(one: Capability, other: Capability) -> None:
    text, address = mint(KEY, one), str(other.episode.key)
    if one.episode.key == other.episode.key:
        assert verify(KEY, text, 0, address) == one
    else:
        assert refusal(text, episode=address) is Refusal.OTHER_EPISODE


@given(capabilities, st.binary(min_size=1))
def test_a_capability_of_another_job_opens_nothing(capability: Capability, secret: bytes) -> None:
    other = gateway_key(secret + b" of another job")
    assert refusal(mint(other, capability)) is Refusal.FORGED


@given(capabilities, st.data())
def test_no_changed_text_opens_anything(capability: Capability, data: st.DataObject) -> None:
    text = mint(KEY, capability)
    place = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.characters(codec="ascii").filter(lambda one: one != text[place]))
    assert refusal(text[:place] + character + text[place + 1 :]) in (Refusal.FORGED, Refusal.MALFORMED)


@given(st.text(max_size=60))
def test_any_other_text_opens_nothing(text: str) -> None:
    assert refusal(text) in (Refusal.MISSING, Refusal.MALFORMED)


def test_signature_and_claim_of_two_capabilities_open_nothing() -> None:
    later = Capability(ONE.episode, 10**9)
    prefix, claim, _ = mint(KEY, later).split(".")
    signature = mint(KEY, ONE).rpartition(".")[2]
    assert refusal(f"{prefix}.{claim}.{signature}") is Refusal.FORGED


def test_a_text_of_any_length_costs_no_more_than_a_key() -> None:
    assert refusal("rlj1." + "A" * 10**7 + ".AAAA") is Refusal.MALFORMED


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, expected: bytes) -> bool:
        compared.append((given, expected))
        return False

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert refusal(mint(KEY, ONE)) is Refusal.FORGED
    ((given, expected),) = compared
    assert given == expected


def test_the_key_does_not_reveal_the_secret() -> None:
    assert b"the job's secret" not in KEY
    assert gateway_key(b"the job's secret.") != KEY
