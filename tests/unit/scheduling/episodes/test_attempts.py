"""Attempts: a failure of ours is tried again, at most three times in all, and is never a zero."""

import pytest

from rljob_runtime.scheduling.episodes.attempts import ENVIRONMENT_FAILED, MOST_ATTEMPTS, EpisodeAttempts
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState
from rljob_runtime.scheduling.episodes.episode import EpisodeRules
from tests.support.episodes import RecordingEngine, opened


def test_three_aborted_attempts_leave_none() -> None:
    attempts = EpisodeAttempts(EpisodeRules())
    for number in (1, 2, 3):
        assert not attempts.failed
        attempts.start(0.0).abort(AbortCause.ENGINE, f"loss {number}")
        end = attempts.ended(number)
        assert end is not None
        assert end.state is EndState.ABORTED
        assert attempts.newest is None
    assert (attempts.failed, attempts.reasons) == (True, [f"engine: loss {number}" for number in (1, 2, 3)])
    with pytest.raises(ValueError, match="3 attempts were aborted, and 3 are allowed"):
        attempts.start(0.0)
    assert (MOST_ATTEMPTS, ENVIRONMENT_FAILED) == (3, "EnvironmentFailed")


def test_a_completed_attempt_ends_the_episode() -> None:
    attempts, engine = EpisodeAttempts(EpisodeRules()), RecordingEngine()
    attempts.start(0.0).abort(AbortCause.ENVIRONMENT)
    attempts.ended(1)
    episode = attempts.start(5.0)
    assert attempts.ended(2) is None
    engine.answer(episode, opened(episode, (1,)), (1,), (2,))
    episode.complete()
    end = attempts.ended(2)
    assert end is not None
    assert (end.state, attempts.newest, attempts.aborted) == (EndState.COMPLETED, episode, 1)


def test_an_older_attempt_has_no_episode() -> None:
    attempts = EpisodeAttempts(EpisodeRules())
    old = attempts.start(0.0)
    new = attempts.start(1.0)
    old.abort(AbortCause.GATEWAY)
    assert (attempts.of(1), attempts.of(2), attempts.ended(1), attempts.aborted) == (None, new, None, 0)


def test_attempts_go_on_from_those_of_a_former_process() -> None:
    attempts = EpisodeAttempts(EpisodeRules(), attempt=4, aborted=2)
    attempts.start(0.0).abort(AbortCause.ENGINE)
    attempts.ended(5)
    assert (attempts.attempt, attempts.failed) == (5, True)
