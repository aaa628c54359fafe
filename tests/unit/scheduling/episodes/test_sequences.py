"""Training sequences: each sampled token once, in its own context, and no given token."""

from rljob_runtime.scheduling.episodes.node import ROOT, Node, NodeKind
from rljob_runtime.scheduling.episodes.sequences import training_sequences
from rljob_runtime.scheduling.episodes.tree import TokenTree


def given(node: int, parent: int, *tokens: int) -> Node:
    return Node(node, parent, NodeKind.GIVEN, tokens)


def sampled(node: int, parent: int, *tokens: int) -> Node:
    return Node(node, parent, NodeKind.SAMPLED, tokens, tuple(-float(token) for token in tokens), node, str(node))


def shown(*nodes: Node) -> list[tuple[int, list[tuple[int, bool]]]]:
    return [
        (one.leaf, list(zip(one.token_ids, one.loss_mask, strict=True)))
        for one in training_sequences(TokenTree.of(nodes))
    ]


def test_a_chain_is_one_sequence_with_a_span_for_each_turn() -> None:
    nodes = (given(1, ROOT, 1, 2), sampled(2, 1, 3), given(3, 2, 4), sampled(4, 3, 5, 6))
    assert shown(*nodes) == [(4, [(1, False), (2, False), (3, True), (4, False), (5, True), (6, True)])]
    (one,) = training_sequences(TokenTree.of(nodes))
    assert [span.node.id for span in one.spans] == [2, 4]


def test_a_shared_turn_is_trained_on_in_its_first_leaf_only() -> None:
    nodes = (given(1, ROOT, 1), sampled(2, 1, 2), given(3, 2, 3), sampled(4, 3, 4), given(5, 2, 5), sampled(6, 5, 6))
    assert shown(*nodes) == [
        (4, [(1, False), (2, True), (3, False), (4, True)]),
        (6, [(1, False), (2, False), (5, False), (6, True)]),
    ]


def test_tokens_after_the_last_turn_are_left_out() -> None:
    assert shown(given(1, ROOT, 1), sampled(2, 1, 2), given(3, 2, 3)) == [(2, [(1, False), (2, True)])]


def test_a_turn_that_was_never_answered_leaves_the_sequences_as_they_were() -> None:
    """The store does not have what it was given: a restarted coordinator trains on the same rows."""
    stored = (given(1, ROOT, 1), sampled(2, 1, 2), given(4, 2, 5), sampled(5, 4, 6))
    unanswered = (*stored[:2], given(3, 2, 4), *stored[2:], given(6, 5, 7))
    assert shown(*unanswered) == shown(*stored)
    assert [node.id for node in TokenTree.of(unanswered).leaves()] == [5]


def test_a_leaf_with_nothing_left_to_train_on_is_no_sequence() -> None:
    nodes = (given(1, ROOT, 1), sampled(2, 1, 2), sampled(3, 2, 3), given(4, 2, 4), given(5, ROOT, 9))
    assert [leaf for leaf, _ in shown(*nodes)] == [3]


def test_an_episode_without_a_turn_has_no_sequence() -> None:
    assert shown(given(1, ROOT, 1)) == []
