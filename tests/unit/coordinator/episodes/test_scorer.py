"""The reward of an episode is its environment's, that of its answer, or the sum of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljob_api import load
from rljob_runtime.coordinator.build import episodes_of
from rljob_runtime.coordinator.episodes.episodes import ManyTurns
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.protocols.rewards import Reward, terms_of
from rljob_runtime.protocols.trajectory import Response
from rljob_runtime.simulator.peers.inputs import SimulatedRewards
from tests.support.api.jobs import job
from tests.support.episode_book import KEY, STOP, Bench, bench
from tests.support.episode_job import ENVIRONMENT, EpisodePrompts


class Recorded(SimulatedRewards):
    """Notes what it is asked to score: texts, and rewards of environments."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, float | None]] = []

    async def score(self, prompt: object, response_text: str, environment_reward: float | None = None) -> float:
        self.asked.append((response_text, environment_reward))
        return Reward(0.25 + (environment_reward or 0.0), {"format": 0.25, "solved": environment_reward or 0.0})


@pytest.mark.parametrize(
    ("adds", "given", "asked", "terms"),
    [
        (False, 0.5, [], {"environment": 0.5}),
        (False, None, [None], {"format": 0.25, "solved": 0.0}),
        (True, 0.5, [0.5], {"format": 0.25, "solved": 0.5}),
        (True, 0.0, [0.0], {"format": 0.25, "solved": 0.0}),
        (True, None, [None], {"format": 0.25, "solved": 0.0}),
    ],
)
async def test_who_scores_an_episode(
    tmp_path: Path, adds: bool, given: float | None, asked: list[float | None], terms: dict[str, float]
) -> None:
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5, 6])
        await made.answered(made.ask(episode, [1, 5, 6, 2]), [7])
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(reward=given))
        rewards, prompts = Recorded(), EpisodePrompts(4)
        own: dict[str, Any] = {"spec.rewards[1]": {"name": "solved", "kind": "Environment"}} if adds else {}
        spec = load(job({"spec.environments": [{"name": "own", "kind": "Agent", "command": ["x"]}], **own})).spec
        scorer = episodes_of(spec, made.book).scorer(prompts, rewards)
        found = await scorer.score(Response(KEY, 1, 1, (5, 6, 7), (-0.5,) * 3, STOP, made.replica.name))
        last = await prompts.decode((7,))
        assert rewards.asked == [(last, one) for one in asked]
        assert terms_of(found) == terms


async def scored(made: Bench, report: EpisodeReport, adds: bool = False) -> list[tuple[str, float | None]]:
    """End the attempt of a bench; return what the job's rules are asked to score."""
    rewards = Recorded()
    own: dict[str, Any] = {"spec.rewards[1]": {"name": "solved", "kind": "Environment"}} if adds else {}
    spec = load(job({"spec.environments": [{"name": "own", "kind": "Agent", "command": ["x"]}], **own})).spec
    (attempt,) = made.book.numbers()
    await made.book.runners.done(ENVIRONMENT, "r", attempt.id, report)
    scorer = episodes_of(spec, made.book).scorer(EpisodePrompts(4), rewards)
    await scorer.score(Response(KEY, 1, 1, (5,), (-0.5,), STOP, made.replica.name))
    return rewards.asked


async def test_a_sub_agent_that_ends_last_gives_no_answer(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5, 6])
        await made.answered(made.ask(episode, [8, 8]), [9])
        await made.answered(made.ask(episode, [1, 5, 6, 2]), [7])
        await made.answered(made.ask(episode, [8, 8, 9, 3]), [4])
        assert await scored(made, EpisodeReport()) == [(await EpisodePrompts(4).decode((7,)), None)]
        (newest,) = made.store.turns.history(episode.attempt, newest=True)
        assert list(newest.turn.token_ids) == [7], "the reward's function sees the same conversation"


@pytest.mark.parametrize(("adds", "reward"), [(False, None), (True, 0.5), (True, None)])
async def test_the_answer_that_a_program_states_is_scored(tmp_path: Path, adds: bool, reward: float | None) -> None:
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5, 6])
        assert await scored(made, EpisodeReport(reward, answer="41"), adds) == [("41", reward)]


async def test_a_restarted_coordinator_scores_the_stated_answer(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5, 6])
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(answer="42"))
    async with bench(tmp_path) as made:
        rewards = Recorded()
        scorer = ManyTurns(made.book).scorer(EpisodePrompts(4), rewards)
        await scorer.score(Response(KEY, 1, 1, (5, 6), (-0.5,) * 2, STOP, made.replica.name))
        assert rewards.asked == [("42", None)]
