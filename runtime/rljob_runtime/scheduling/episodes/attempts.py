"""Attempts: the tries of one episode, until one ends without a failure of ours.

A failed attempt never becomes a zero. The next one starts from the beginning, with other random numbers. When all
attempts failed, the episode's group is filtered with the reason `EnvironmentFailed`.
"""

from __future__ import annotations

from rljob_runtime.scheduling.episodes.ends import EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules

MOST_ATTEMPTS = 3
"""A failure that repeats so often has a cause that another attempt meets too."""
ENVIRONMENT_FAILED = "EnvironmentFailed"
"""Why a group was filtered: all attempts of one of its episodes were aborted."""


class EpisodeAttempts:
    """The attempts of one trajectory, each numbered from 1. `attempt`, `aborted`: those of a former process."""

    def __init__(self, rules: EpisodeRules, attempt: int = 0, aborted: int = 0) -> None:
        self.rules = rules
        self.attempt = attempt
        """The newest attempt."""
        self.aborted = aborted
        """Attempts that a failure of ours ended."""
        self.reasons: list[str] = []
        """Why they were aborted, as far as this process has seen it."""
        self._episode: Episode | None = None

    @property
    def failed(self) -> bool:
        """Whether no attempt is left: the group is filtered with `ENVIRONMENT_FAILED`."""
        return self.aborted >= MOST_ATTEMPTS

    @property
    def newest(self) -> Episode | None:
        """The episode of the newest attempt; None before the first, and after an aborted one."""
        return self._episode

    def start(self, now: float) -> Episode:
        """Start the next attempt.

        One that a process lost before its end costs no try, because nothing of it has failed. Raises `ValueError` if
        no attempt is left.
        """
        if self.failed:
            raise ValueError(f"{self.aborted} attempts were aborted, and {MOST_ATTEMPTS} are allowed")
        self.attempt += 1
        self._episode = Episode(self.rules, now)
        return self._episode

    def of(self, attempt: int) -> Episode | None:
        """Return the episode of this attempt; None if it is not the newest, so that its requests do not count."""
        return self._episode if attempt == self.attempt else None

    def ended(self, attempt: int) -> EpisodeEnd | None:
        """Take the end of an attempt; None for another attempt than the newest, or one that has not ended."""
        episode = self.of(attempt)
        if episode is None or episode.end is None:
            return None
        if episode.end.state is EndState.ABORTED:
            self.aborted += 1
            self.reasons.append(episode.end.reason)
            self._episode = None
        return episode.end
