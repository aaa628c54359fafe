"""Counts of an attempt are of what is stored of it: each token once, and none of a turn that was dropped."""

from rljob_runtime.scheduling.episodes.counts import EpisodeCounts, episode_counts
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from tests.support.episodes import RecordingEngine, opened
from tests.support.stored_episodes import given, sampled


def test_branches_share_their_beginning():
    nodes = [given(1, 0, 1, 1), sampled(2, 1, 3), given(3, 2, 4), sampled(4, 3, 5, 6), sampled(5, 3, 7), given(6, 0, 9)]
    tree = {node.id: node for node in [*nodes, sampled(7, 6, 8)]}
    assert episode_counts(tree) == EpisodeCounts(turns=4, forks=2, given_tokens=4, sampled_tokens=5)


def test_what_a_dropped_turn_was_given_does_not_count():
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    engine.answer(episode, opened(episode, (1, 2)), (1, 2), (3,))
    episode.drop(opened(episode, (1, 2, 3, 4, 5)).id)
    assert episode_counts(episode.nodes) == EpisodeCounts(turns=1, forks=0, given_tokens=2, sampled_tokens=1)


def test_an_attempt_without_turns_has_none():
    assert episode_counts({}) == EpisodeCounts(0, 0, 0, 0)
