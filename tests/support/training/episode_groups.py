"""Groups of made-up episodes: turns with given tokens between them, rewritten histories, forks and sub-agents."""

from __future__ import annotations

import random

from rljob_runtime.protocols.trajectory import FinishReason, Group, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from rljob_runtime.scheduling.episodes.responses import ScoredEpisode, group_of
from tests.support.episodes import opened
from tests.support.training.toys import VOCABULARY


def tokens(rng: random.Random, most: int) -> tuple[int, ...]:
    """Return up to so many random tokens, at least one."""
    return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, most)))


def make_episode(rng: random.Random, prompt: tuple[int, ...], turns: int, *, sub_agents: bool) -> Episode:
    """Return an episode of so many turns."""
    episode, histories, request = Episode(EpisodeRules(), 0.0), [prompt], prompt
    for number in range(turns):
        turn = opened(episode, request, digest=str(number))
        answer = tokens(rng, 5)
        logprobs = tuple(-rng.uniform(0.5, 5.0) for _ in answer)
        finish = FinishReason.LENGTH if rng.random() < 0.1 else FinishReason.STOP
        episode.commit(turn.id, answer, logprobs, 10 + number, finish)
        histories.append((*request, *answer))
        kind = rng.random()
        history = histories[-1] if kind < 0.6 else rng.choice(histories)
        if 0.75 < kind <= 0.9:  # a rewritten history
            history = history[: max(len(prompt), len(history) - 2)]
        elif kind > 0.9 and sub_agents:
            history = ()
        request = (*history, *tokens(rng, 3))
    episode.complete()
    return episode


def make_episode_groups(
    seed: int, count: int, *, sub_agents: bool = False
) -> list[tuple[Group, tuple[ScoredEpisode, ...]]]:
    """Return groups of four episodes, with the episodes that they come from."""
    rng, made = random.Random(seed), []
    for index in range(count):
        key, prompt = PromptKey(0, index), tokens(rng, 7)
        episodes = tuple(
            ScoredEpisode(
                TrajectoryKey(key, sample),
                1,
                "r",
                make_episode(rng, prompt, rng.randint(1, 5), sub_agents=sub_agents),
                rng.choice([0.0, 0.1, 1.0]),
            )
            for sample in range(4)
        )
        made.append((group_of(key, episodes), episodes))
    return made
