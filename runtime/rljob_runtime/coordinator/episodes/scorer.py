"""Episode scorer: the reward of an episode, from its environment or from the job's rewards."""

from __future__ import annotations

from dataclasses import replace

from rljob_runtime.coordinator.episodes.book import EpisodeBook
from rljob_runtime.coordinator.generation.scoring import Scorer
from rljob_runtime.protocols.rewards import ResponseAborted, Reward
from rljob_runtime.protocols.trajectory import Response
from rljob_runtime.scheduling.episodes.ends import EndState, counts_as_failure

ENVIRONMENT = "environment"
"""Name of the reward's only rule, if the environment gives the reward."""


class EpisodeScorer:
    """A `Scorer` of episodes. `last_answer` scores the text of the last turn."""

    def __init__(self, book: EpisodeBook, last_answer: Scorer) -> None:
        self._book = book
        self._last_answer = last_answer

    async def score(self, response: Response) -> float:
        """Return the environment's reward, or that of the last answer.

        An attempt that a failure of ours ended has none: raises `ResponseAborted`.
        """
        await self._book.load([response.key])
        attempt = self._book.finished(response.key)
        if attempt is None or attempt.episode.end is None:
            raise ResponseAborted("its episode is not known")
        attempt.scored = True
        end = attempt.episode.end
        if end.state is EndState.ABORTED:
            counts = counts_as_failure(end, await self._book.hand_backs(response.key))
            raise ResponseAborted(f"its episode was aborted: {end.reason}", counts)
        if attempt.report is not None and attempt.report.reward is not None:
            return Reward(attempt.report.reward, {ENVIRONMENT: attempt.report.reward})
        last = attempt.episode.sampled[-1]
        return await self._last_answer.score(replace(response, token_ids=last.token_ids, logprobs=last.logprobs))
