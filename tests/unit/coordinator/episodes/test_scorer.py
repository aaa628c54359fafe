"""The reward of an episode is its environment's, that of its last answer, or the sum of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljob_api import load
from rljob_runtime.coordinator.build import episodes_of
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.protocols.rewards import Reward, terms_of
from rljob_runtime.protocols.trajectory import Response
from rljob_runtime.simulator.peers.inputs import SimulatedRewards
from tests.support.api.jobs import job
from tests.support.episode_book import KEY, STOP, bench
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
