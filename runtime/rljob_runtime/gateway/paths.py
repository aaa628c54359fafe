"""Paths: the answered turns of an attempt, by what their conversations said.

A client sends messages. The tokens of those that this gateway answered are known, and stay as they are: the deepest
turn whose conversation begins the client's is looked up by a digest of its messages. An answer that the client changed
is found by no digest, so its conversation is another branch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.gateway.text.turn_text import TurnTokens
from rljob_runtime.protocols.turns import EpisodeAttempt


@dataclass(frozen=True)
class Known:
    """A turn that begins a conversation, and the number of the conversation's messages that it covers."""

    turn: TurnTokens
    messages: int


@dataclass
class Paths:
    """The answered turns of one attempt. A lookup costs the messages of the conversation, whatever the turns."""

    _turns: dict[bytes, TurnTokens] = field(default_factory=dict)

    def add(self, conversation: bytes, turn: TurnTokens) -> None:
        """Add a turn. `conversation`: the digest of its messages, the answer included.

        Of equal ones the first stays: the engine may have written the same text in other tokens, and either is right.
        """
        self._turns.setdefault(conversation, turn)

    def deepest(self, chain: Sequence[bytes]) -> Known | None:
        """Return the deepest turn of a conversation. `chain`: the digests of its beginnings, the shortest first.

        The whole conversation is none: its answer is what the client asks for.
        """
        for count in range(len(chain) - 1, 0, -1):
            if (turn := self._turns.get(chain[count - 1])) is not None:
                return Known(turn, count)
        return None


class AttemptPaths:
    """The paths of the attempts that asked last. Those of another are read from the coordinator again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._paths: OrderedDict[EpisodeAttempt, Paths] = OrderedDict()

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
        while len(self._paths) > self._most:
            self._paths.popitem(last=False)
        return kept

    def forget(self, episode: EpisodeAttempt) -> None:
        """Drop the paths of an attempt that has ended."""
        self._paths.pop(episode, None)
