"""The answer of an episode is the newest one of its main conversation, whatever its sub-agents do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.scheduling.episodes.node import ROOT, Node, NodeKind, last_answer

GIVEN, SAMPLED = NodeKind.GIVEN, NodeKind.SAMPLED


def tree(*parents: int) -> dict[int, Node]:
    """Return nodes 1, 2, … below these parents; a negative parent is that of a sampled node."""
    nodes = {}
    for number, parent in enumerate(parents, 1):
        is_sampled = parent < 0
        nodes[number] = Node(
            number,
            abs(parent),
            SAMPLED if is_sampled else GIVEN,
            (number,),
            (-0.5,) if is_sampled else (),
            1 if is_sampled else None,
            str(number),
            FinishReason.STOP if is_sampled else None,
        )
    return nodes


@pytest.mark.parametrize(
    ("parents", "answer"),
    [
        ((0, -1), 2),
        ((0, -1, 2, -3), 4),
        ((0, -1, 0, -3, 2, -5, 4, -7), 6),
        ((0, -1, 0, -3, 0, -5, 2, -7, 4, -9), 8),
        ((0, -1, 2, -3, 0, -5), 6),
        ((0, -1, 0, -3, 2, -5, 0, -7), 8),
        ((0, -1, 1, -3), 4),
        ((0, -1, -1), 3),
        ((0, 0, -2), 3),
        ((0, -1, 0), 2),
    ],
    ids=[
        "one turn",
        "two turns",
        "a sub-agent that ends last",
        "two sub-agents, one of which ends last",
        "a history that was shortened",
        "a history that was shortened after a sub-agent",
        "a history that was rewritten after the first prompt",
        "two answers to one prompt",
        "a first turn that was never answered",
        "a last turn that is open",
    ],
)
def test_the_answer_of_an_episode_by_its_tree(parents: tuple[int, ...], answer: int) -> None:
    assert last_answer(tree(*parents)).id == answer


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 4))
def test_no_sub_agent_changes_the_answer_of_its_agent(turns: list[bool], after: int) -> None:
    """`turns`: whether each further turn is the agent's or a sub-agent's; both begin before the agent's last turn."""
    parents, newest = [0, -1, 0, -3], {True: 2, False: 4}
    for own in (*turns, True, *[False] * after):
        parents += [newest[own], -(len(parents) + 1)]
        newest[own] = len(parents)
    assert last_answer(tree(*parents)).id == newest[True] != len(parents)


@given(st.data(), st.integers(1, 12))
def test_of_one_conversation_it_is_the_turn_opened_last(data: st.DataObject, turns: int) -> None:
    """However the client forks below its first prompt."""
    parents = [ROOT, -1]
    for _ in range(turns):
        parents += [data.draw(st.integers(1, len(parents))), -(len(parents) + 1)]
    assert last_answer(tree(*parents)).id == len(parents)
