"""Episodes as responses: one turn is the response that it would be without turns."""

import pytest

from rljob_runtime.protocols.trajectory import PromptKey, Response, Span, TrajectoryKey
from rljob_runtime.scheduling.episodes.ends import AbortCause
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from rljob_runtime.scheduling.episodes.limits import Limit, Limits
from rljob_runtime.scheduling.episodes.responses import ScoredEpisode, group_of
from tests.support.episodes import LENGTH, STOP, RecordingEngine, opened

PROMPT = PromptKey(0, 3)


def episode(
    *turns: tuple[tuple[int, ...], tuple[int, ...]], limits: Limits | None = None, cut: bool = False
) -> Episode:
    """Return an episode of turns: a request, and its answer by version 10 less the number of the turn."""
    one, engine = Episode(EpisodeRules(limits or Limits()), 0.0), RecordingEngine()
    for number, (asked, tokens) in enumerate(turns):
        turn = opened(one, asked)
        engine.answer(one, turn, asked, tokens, 10 - number, LENGTH if cut else STOP)
    return one


def scored(sample: int, one: Episode) -> ScoredEpisode:
    one.complete()
    return ScoredEpisode(TrajectoryKey(PROMPT, sample), 2, "rollout-1", one, 0.5)


def test_an_episode_of_one_turn_is_a_plain_response() -> None:
    group = group_of(PROMPT, [scored(0, episode(((1, 2), (3, 4))))])
    assert group.prompt_token_ids == (1, 2)
    assert [one.reward for one in group.responses] == [0.5]
    assert group.responses[0].response == Response(
        TrajectoryKey(PROMPT, 0), 2, 10, (3, 4), (-1.0, -2.0), STOP, "rollout-1"
    )


def test_turns_are_spans_after_the_prompt_that_all_sequences_share() -> None:
    chain = episode(((1, 2), (3,)), ((1, 2, 3, 7, 7), (4, 5)))
    forked = episode(((1, 2, 9), (6,)), ((1, 2, 9, 6, 7), (8,)), ((1, 2, 9, 6), (5,)), ((1, 2, 0), (5,)))
    group = group_of(PROMPT, [scored(0, chain), scored(1, forked)])
    assert group.prompt_token_ids == (1, 2)
    first, second = (one.response for one in group.responses)
    assert (first.token_ids, first.logprobs) == ((3, 4, 5), (-1.0, -2.0, -3.0))
    assert first.sequences == ((Span((), 1), Span((7, 7), 2)),)
    assert first.weight_version == 9
    assert second.token_ids == (6, 8, 5, 5)
    assert second.sequences == ((Span((9,), 1), Span((7,), 1)), (Span((9, 6), 1),), (Span((0,), 1),))


def test_sequences_that_share_no_beginning_have_an_empty_prompt() -> None:
    group = group_of(PROMPT, [scored(0, episode(((1,), (2,)))), scored(1, episode(((3,), (4,))))])
    assert group.prompt_token_ids == ()
    assert [one.response.sequences for one in group.responses] == [((Span((1,), 1),),), ((Span((3,), 1),),)]


def test_an_episode_is_cut_if_its_last_turn_was_or_a_limit_ended_it() -> None:
    cut = episode(((1,), (2,)), cut=True)
    limited = episode(((1,), (2,)), limits=Limits(seconds=5.0))
    assert limited.reach(Limit.SECONDS, 6.0)
    group = group_of(PROMPT, [scored(0, cut), scored(1, limited), scored(2, episode(((1,), (2,))))])
    assert [one.response.finish_reason for one in group.responses] == [LENGTH, LENGTH, STOP]


def test_a_failure_of_ours_is_not_trained_on() -> None:
    failed = episode(((1,), (2,)))
    failed.abort(AbortCause.ENVIRONMENT)
    going_on = ScoredEpisode(TrajectoryKey(PROMPT, 1), 1, "r", episode(((1,), (2,))), 0.0)
    for one in (scored(0, failed), going_on):
        with pytest.raises(ValueError, match="was not completed"):
            group_of(PROMPT, [one])
