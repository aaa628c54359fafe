"""Limits that harnesses state: they end by themselves, and no refused turn says why."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rljob_runtime.coordinator.store.tables.turns import KeptEpisode
from rljob_runtime.protocols.environments import EpisodeReport, HarnessLimit
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.protocols.turns import EpisodeAttempt, TurnRefused
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState
from rljob_runtime.scheduling.episodes.limits import Limit, Limits
from rljob_runtime.scheduling.episodes.responses import ScoredEpisode, group_of
from tests.support.episode_book import KEY, LENGTH, STOP, Bench, bench
from tests.support.episode_job import ENVIRONMENT

TWO = Limits(turns=2)
"""Beside 60 s, which each attempt of a bench has."""


async def played(made: Bench, turns: int, seconds: float, report: EpisodeReport) -> KeptEpisode:
    """Play so many turns, and let the runner report after so many seconds; return what is stored."""
    episode = await made.begun()
    prompt = [1]
    for _ in range(turns):
        await made.answered(made.ask(episode, prompt), [5])
        prompt = [*prompt, 5, 2]
    return await reported(made, episode, seconds, report)


async def reported(made: Bench, episode: EpisodeAttempt, seconds: float, report: EpisodeReport) -> KeptEpisode:
    made.now[0] += seconds
    await made.book.runners.done(ENVIRONMENT, "r", episode, report)
    return made.store.turns.newest([KEY])[KEY]


@pytest.mark.parametrize(
    ("turns", "seconds", "stated", "limit"),
    [
        (2, 1.0, HarnessLimit.TURNS, Limit.TURNS),
        (1, 60.0, HarnessLimit.SECONDS, Limit.SECONDS),
        (2, 1.0, None, None),
        (1, 1.0, HarnessLimit.TURNS, None),
        (1, 20.0, HarnessLimit.SECONDS, None),
    ],
    ids=["turns", "seconds", "an answer in the last turn", "too few turns", "well before the deadline"],
)
async def test_a_harness_that_a_limit_ended_is_truncated_by_it(
    tmp_path: Any, caplog: Any, turns: int, seconds: float, stated: HarnessLimit | None, limit: Limit | None
) -> None:
    async with bench(tmp_path, TWO) as made:
        with caplog.at_level(logging.WARNING):
            kept = await played(made, turns, seconds, EpisodeReport(0.5, detail="why", limit=stated))
        assert kept.end is not None
        assert kept.end.state is (EndState.COMPLETED if limit is None else EndState.TRUNCATED)
        assert (kept.end.limit, kept.reward) == (limit, 0.5)
        assert kept.end.detail == ("" if limit is None else "why")
        assert (await made.deltas())[-1].finish_reason is (STOP if limit is None else LENGTH)
        impossible = stated is not None and limit is None
        assert ("states the limit of" in caplog.text) == impossible


async def test_a_limit_without_a_turn_is_said_and_is_no_reward(tmp_path: Any) -> None:
    async with bench(tmp_path, TWO) as made:
        kept = await played(made, 0, 60.0, EpisodeReport(1.0, limit=HarnessLimit.SECONDS))
        assert kept.end is not None
        assert (kept.end.cause, kept.reward) == (AbortCause.NO_TURN, None)
        assert (
            kept.end.detail == "the agent ended without an answer of the model, after the limit of seconds was reached"
        )


async def test_a_first_prompt_beyond_the_limit_of_tokens_is_no_reward(tmp_path: Any) -> None:
    """Its program is refused, and there is no token to train on."""
    async with bench(tmp_path, Limits(tokens=3)) as made:
        episode = await made.begun()
        with pytest.raises(TurnRefused, match="tokens"):
            await made.book.turns.turn(made.ask(episode, [1, 2, 3]))
        kept = await reported(made, episode, 1.0, EpisodeReport(1.0))
        assert kept.end is not None
        assert (kept.end.cause, kept.reward) == (AbortCause.NO_TURN, None)
        assert kept.end.reason.endswith("without an answer of the model, after the limit of tokens was reached")


async def test_the_next_coordinator_trains_on_it_as_one_that_was_cut(tmp_path: Any) -> None:
    """No turn was refused, so the limit is stored with the end alone."""
    async with bench(tmp_path, TWO) as made:
        await played(made, 2, 1.0, EpisodeReport(1.0, limit=HarnessLimit.TURNS))
    async with bench(tmp_path, TWO) as made:
        await made.book.load([KEY])
        attempt = made.book.finished(KEY)
        assert attempt is not None
        group = group_of(PromptKey(0, 3), [ScoredEpisode(KEY, 1, "r", attempt.episode, 1.0)])
        assert [one.response.finish_reason for one in group.responses] == [LENGTH]
