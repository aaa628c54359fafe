"""Episode scorer: the reward of an episode, from its environment, from the job's rewards, or from both."""

from __future__ import annotations

from dataclasses import replace

from rljob_api.constants import ENVIRONMENT_TERM
from rljob_runtime.coordinator.episodes.book import EpisodeBook
from rljob_runtime.coordinator.generation.scoring import TextScorer
from rljob_runtime.protocols.rewards import ResponseAborted, Reward
from rljob_runtime.protocols.trajectory import Response
from rljob_runtime.scheduling.episodes.ends import EndState, counts_as_failure
from rljob_runtime.scheduling.episodes.node import last_answer


class EpisodeScorer:
    """A `Scorer` of episodes. `answers` scores what a program states as its answer, else the text of the last answer.

    `adds`: the environment's reward is a term of the job's rewards. Else it counts in their place.
    """

    def __init__(self, book: EpisodeBook, answers: TextScorer, adds: bool = False) -> None:
        self._book = book
        self._answers = answers
        self._adds = adds

    async def score(self, response: Response) -> float:
        """Return the environment's reward, that of the answer, or the sum of both.

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
        given = attempt.report.reward if attempt.report is not None else None
        if given is not None and not self._adds:
            return Reward(given, {ENVIRONMENT_TERM: given})
        answer = attempt.report.answer if attempt.report is not None else None
        if answer is not None:
            return await self._answers.score_text(response.key, answer, given)
        turn = last_answer(attempt.episode.nodes)
        last = replace(response, token_ids=turn.token_ids, logprobs=turn.logprobs)
        return await self._answers.score_with(last, given)
