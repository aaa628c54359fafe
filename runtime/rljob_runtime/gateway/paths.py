"""Paths: the answered turns of an attempt, by what their conversations said.

A client sends messages. The tokens of those that this gateway answered are known, and stay as they are: the deepest
turn whose conversation begins the client's is looked up by a digest of its messages. An answer that the client changed
is found by no digest, so its conversation is another branch.

A turn holds its own tokens and the turn that it goes on from, so an attempt costs the tokens of its tree: with whole
prompts, 80 turns would cost forty times as much. What all attempts cost is bounded in bytes: a number of attempts would
be too many of long ones, or too few of short ones.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.gateway_bounds import ATTEMPT_BYTES, TOKEN_BYTES, TURN_BYTES
from rljob_runtime.gateway.text.turn_text import TurnTokens
from rljob_runtime.protocols.turns import EpisodeAttempt


@dataclass(frozen=True, slots=True)
class _Link:
    """A turn: the tokens between the one before and its answer, and the answer's."""

    before: _Link | None
    given: array[int]
    sampled: array[int]

    def tokens(self) -> TurnTokens:
        """Return the turn with its whole prompt."""
        links, link = [], self.before
        while link is not None:
            links.append(link)
            link = link.before
        prompt: list[int] = []
        for one in reversed(links):
            prompt += one.given
            prompt += one.sampled
        return TurnTokens([*prompt, *self.given], list(self.sampled))


@dataclass(frozen=True)
class Known:
    """A turn that begins a conversation, and the number of the conversation's messages that it covers."""

    turn: TurnTokens
    messages: int
    link: _Link


class Paths:
    """The answered turns of one attempt. A lookup costs the messages and the tokens of its own conversation."""

    def __init__(self) -> None:
        self._links: dict[bytes, _Link] = {}

    @property
    def tokens_held(self) -> int:
        """Tokens of all turns."""
        # A thread may add one meanwhile.
        return sum(len(link.given) + len(link.sampled) for link in list(self._links.values()))

    @property
    def turns(self) -> int:
        """Turns that are here."""
        return len(self._links)

    @property
    def size(self) -> int:
        """Bytes that the turns take."""
        return ATTEMPT_BYTES + TURN_BYTES * len(self._links) + TOKEN_BYTES * self.tokens_held

    def add(self, conversation: bytes, turn: TurnTokens, known: Known | None = None) -> None:
        """Add a turn. `conversation`: the digest of its messages, the answer included. `known`: what it may go on from.

        Of equal conversations the first turn stays: the engine may have written the same text in other tokens, and
        either is right.
        """
        own = [*known.turn.prompt, *known.turn.sampled] if known else []
        prompt = list(turn.prompt)
        before = known.link if known and prompt[: len(own)] == own else None
        given = prompt[len(own) :] if before else prompt
        self._links.setdefault(conversation, _Link(before, array("i", given), array("i", turn.sampled)))

    def deepest(self, chain: Sequence[bytes]) -> Known | None:
        """Return the deepest turn of a conversation. `chain`: the digests of its beginnings, the shortest first.

        The whole conversation is none: its answer is what the client asks for.
        """
        for count in range(len(chain) - 1, 0, -1):
            if (link := self._links.get(chain[count - 1])) is not None:
                return Known(link.tokens(), count, link)
        return None


class AttemptPaths:
    """The paths of the attempts that asked last, in `most` bytes. Those of others are dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._paths: OrderedDict[EpisodeAttempt, Paths] = OrderedDict()
        self._counted: dict[EpisodeAttempt, int] = {}
        """Bytes of each attempt when it was measured."""
        self.held = 0
        """Their sum."""

    def get(self, episode: EpisodeAttempt) -> Paths | None:
        """Return an attempt's paths, if they are here."""
        found = self._paths.get(episode)
        if found is not None:
            self._paths.move_to_end(episode)
        return found

    def put(self, episode: EpisodeAttempt, paths: Paths) -> Paths:
        """Keep an attempt's paths unless some are here; return those that are."""
        kept = self._paths.setdefault(episode, paths)
        self._paths.move_to_end(episode)
        self.measure(episode)
        return kept

    def measure(self, episode: EpisodeAttempt) -> None:
        """Count the bytes of an attempt that may have grown, and drop attempts until all are within the bound.

        One that is larger than the bound alone drops no other."""
        if (paths := self._paths.get(episode)) is None:
            return
        size = paths.size
        self.held += size - self._counted.get(episode, 0)
        self._counted[episode] = size
        if size > self._most:
            self.forget(episode)
        while self.held > self._most:
            self.forget(next(iter(self._paths)))

    def forget(self, episode: EpisodeAttempt) -> None:
        """Drop the paths of an attempt."""
        if self._paths.pop(episode, None) is not None:
            self.held -= self._counted.pop(episode)
