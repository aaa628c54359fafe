"""Trained digests: those of groups are those of the trees they came from, and any other content has another one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.audit.stored_turns import Context, trained_digest
from rljob_runtime.coordinator.store.trained_digests import trained_digests
from rljob_runtime.protocols.trajectory import Group, PromptKey, Response, ScoredResponse, Span, TrajectoryKey
from rljob_runtime.scheduling.episodes.ends import EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from rljob_runtime.scheduling.episodes.node import ROOT, Node
from rljob_runtime.scheduling.episodes.responses import ScoredEpisode, group_of
from tests.support.episodes import STOP
from tests.support.stored_episodes import given as given_node
from tests.support.stored_episodes import sampled as sampled_node

PROMPT = PromptKey(0, 0)
KEY = TrajectoryKey(PROMPT, 0)
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=3)
COMMITS = st.lists(st.tuples(st.integers(0, 9), TOKENS, TOKENS), min_size=1, max_size=6)
"""Turns: the earlier turn (or none) that each follows, what it was given, and what it sampled."""


def tree(commits) -> list[Node]:
    nodes: list[Node] = []
    ends = [ROOT]
    for follows, told, answer in commits:
        first = len(nodes) + 1
        parent = ends[follows % len(ends)]
        nodes += [given_node(first, parent, *told), sampled_node(first + 1, first, *answer)]
        ends.append(first + 1)
    return nodes


def scored(sample: int, nodes: list[Node], reward: float) -> ScoredEpisode:
    episode = Episode(EpisodeRules(), 0.0, nodes, nodes[-1].id)
    episode.end = EpisodeEnd(EndState.COMPLETED)
    return ScoredEpisode(TrajectoryKey(PROMPT, sample), 1, "rollout-0", episode, reward)


def of_tree(nodes: list[Node], reward: float) -> bytes:
    """Return the digest of all paths from the root to a sampled node, written out."""
    by_id = {node.id: node for node in nodes}

    def before(node: Node) -> list[int]:
        above = by_id.get(node.parent)
        return [] if above is None else [*before(above), *above.token_ids]

    found = (Context().extended(before(one)).sampled(one.token_ids, one.logprobs) for one in nodes if one.is_sampled)
    return trained_digest(found, reward)


@given(st.lists(COMMITS, min_size=1, max_size=3))
def test_a_group_has_the_digests_of_its_trees(episodes) -> None:
    trees = [tree(commits) for commits in episodes]
    group = group_of(PROMPT, [scored(sample, nodes, 0.1 * sample) for sample, nodes in enumerate(trees)])
    found = trained_digests([group])
    assert list(found.values()) == [of_tree(nodes, 0.1 * sample) for sample, nodes in enumerate(trees)]


def response(**changed) -> Response:
    places = ((Span((7,), 1), Span((8, 9), 2)), (Span((7, 4), 1),))
    made = Response(KEY, 1, 1, (1, 2, 3, 4), (-0.1, -0.2, -0.3, -0.4), STOP, "rollout-0", places)
    return replace(made, **changed)


def digest(made: Response, prompt: tuple[int, ...] = (5, 6), reward: float = 1.0) -> bytes:
    return trained_digests([Group(PROMPT, prompt, (ScoredResponse(made, reward),))])[KEY]


def test_other_contents_have_other_digests() -> None:
    places = response().sequences
    others = [
        digest(response()),
        digest(response(), prompt=(5, 7)),
        digest(response(), reward=0.0),
        digest(response(token_ids=(1, 2, 3, 5))),
        digest(response(logprobs=(-0.1, -0.2, -0.3, -0.5))),
        digest(response(sequences=((Span((7,), 1), Span((8, 8), 2)), places[1]))),
        digest(response(sequences=((Span((7,), 1), Span((8, 9), 1)), (Span((7, 4), 2),)))),
        digest(response(sequences=((Span((7,), 2), Span((8, 9), 1)), places[1]))),
        digest(response(sequences=())),
    ]
    assert len(set(others)) == len(others)


def test_a_negative_zero_is_a_zero_as_in_the_store() -> None:
    assert digest(response(), reward=-0.0) == digest(response(), reward=0.0)


def test_a_response_that_is_trained_on_twice_has_another_digest() -> None:
    group = Group(PROMPT, (5, 6), (ScoredResponse(response(), 1.0),))
    twice = [trained_digests([replace(group, responses=group.responses * 2)]), trained_digests([group, group])]
    assert digest(response()) not in [found[KEY] for found in twice]


def test_where_the_prompt_ends_changes_nothing() -> None:
    """What all sequences of a group begin with depends on its other responses."""
    longer = tuple((Span((6, *first.given), first.sampled), *others) for first, *others in response().sequences)
    assert digest(response(sequences=longer), prompt=(5,)) == digest(response())
