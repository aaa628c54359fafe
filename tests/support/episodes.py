"""Episodes for tests: an engine that records what it emits, and journals of turns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.scheduling.episodes.episode import Episode
from rljob_runtime.scheduling.episodes.node import Node
from rljob_runtime.scheduling.episodes.turns import Generate, Turn, TurnRequest

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@dataclass(frozen=True)
class Emission:
    """What an engine emitted for a prompt, as bytes: no two emissions have the same logprobs."""

    prompt: bytes
    token_ids: bytes
    logprobs: bytes
    version: int


def packed(tokens: Sequence[int]) -> bytes:
    """Return tokens as bytes."""
    return array("i", tokens).tobytes()


def packed_logprobs(logprobs: Sequence[float]) -> bytes:
    """Return logprobs as bytes."""
    return array("d", logprobs).tobytes()


@dataclass
class RecordingEngine:
    """Emits given tokens, with logprobs that never repeat."""

    emitted: list[Emission] = field(default_factory=list)
    committed: list[Emission] = field(default_factory=list)
    """Emissions that the episode took."""
    _logprob: float = 0.0

    def answer(
        self,
        episode: Episode,
        turn: Turn,
        prompt: Sequence[int],
        tokens: Sequence[int],
        version: int = 1,
        finish: FinishReason = STOP,
    ) -> tuple[Node, ...]:
        """Emit these tokens for the turn, and commit them."""
        logprobs = []
        for _ in tokens:
            self._logprob -= 1.0
            logprobs.append(self._logprob)
        emission = Emission(packed(prompt), packed(tokens), packed_logprobs(logprobs), version)
        self.emitted.append(emission)
        stored = episode.commit(turn.id, tuple(tokens), tuple(logprobs), version, finish)
        if stored:
            self.committed.append(emission)
        return stored


def ask(tokens: Sequence[int], digest: str | None = None, *, retry: bool = False) -> TurnRequest:
    """Return a request whose digest follows from its tokens, unless one is given."""
    return TurnRequest(tuple(tokens), digest or str(tuple(tokens)), retry)


def opened(
    episode: Episode, tokens: Sequence[int], now: float = 0.0, version: int | None = None, digest: str | None = None
) -> Turn:
    """Open a turn that must be accepted."""
    decision = episode.open(ask(tokens, digest), now, version)
    assert isinstance(decision, Generate), decision
    return decision.turn
