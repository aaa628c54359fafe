"""Context limit: attempts whose newest request did not fit into the model's context.

The coordinator does not know of such a request. Its client may shorten the messages and go on. If it ends instead, the
limit of tokens has ended the episode, and not its agent.
"""

from __future__ import annotations

from rljob_runtime.protocols.turns import EpisodeAttempt

MOST_ATTEMPTS = 1 << 16
"""Attempts that are remembered. The oldest is forgotten first: it may have ended without a report."""


class ContextLimit:
    """The attempts that wait for a shorter request."""

    def __init__(self) -> None:
        self._refused: dict[EpisodeAttempt, None] = {}

    def refuse(self, episode: EpisodeAttempt) -> None:
        """Record that a request of an attempt was too long."""
        self._refused.pop(episode, None)
        self._refused[episode] = None
        if len(self._refused) > MOST_ATTEMPTS:
            del self._refused[next(iter(self._refused))]

    def answer(self, episode: EpisodeAttempt) -> None:
        """Record that a request of an attempt was answered: it goes on."""
        self._refused.pop(episode, None)

    def has_ended(self, episode: EpisodeAttempt) -> bool:
        """Return whether an attempt that ends now was ended by its context."""
        return episode in self._refused

    def forget(self, episode: EpisodeAttempt) -> None:
        """Forget an attempt that has ended."""
        self._refused.pop(episode, None)
