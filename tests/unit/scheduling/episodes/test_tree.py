"""The token tree: a request attaches by its tokens alone, and costs its own tokens."""

import hashlib

import pytest

from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.scheduling.episodes.node import ROOT, Node, NodeKind
from rljob_runtime.scheduling.episodes.tree import DIGEST_BYTES, TokenTree, extended


def given(node: int, parent: int, *tokens: int) -> Node:
    return Node(node, parent, NodeKind.GIVEN, tokens)


def sampled(node: int, parent: int, *tokens: int, finish: FinishReason = FinishReason.STOP) -> Node:
    return Node(node, parent, NodeKind.SAMPLED, tokens, (-1.0,) * len(tokens), 1, str(node), finish)


TREE = (
    given(1, ROOT, 1, 2, 3),
    sampled(2, 1, 4, 5),
    given(3, 2, 6),
    sampled(4, 3, 7, finish=FinishReason.LENGTH),
    sampled(5, 1, 4, 5, 6, 8),
    given(6, ROOT, 9, 1),
)


@pytest.mark.parametrize(
    ("name", "tokens", "node", "tail"),
    [
        ("nothing is known", (8, 8), ROOT, (8, 8)),
        ("a node begins like it, but goes on otherwise", (1, 2, 4), ROOT, (1, 2, 4)),
        ("it ends within a node", (1, 2), ROOT, (1, 2)),
        ("exactly a given node", (1, 2, 3), 1, ()),
        ("the deepest node counts", (1, 2, 3, 4, 5, 6, 9), 3, (9,)),
        ("of two branches, the one with these tokens", (1, 2, 3, 4, 5, 6, 8, 1), 5, (1,)),
        ("a turn that was cut is never extended", (1, 2, 3, 4, 5, 6, 7, 1), 3, (7, 1)),
        ("an early change makes another beginning", (9, 2, 3, 4, 5, 6), ROOT, (9, 2, 3, 4, 5, 6)),
        ("another beginning that is known", (9, 1, 1), 6, (1,)),
    ],
)
def test_a_request_attaches_to_the_deepest_node_whose_path_it_begins_with(name, tokens, node, tail) -> None:
    place = TokenTree.of(TREE).attach(tokens)
    assert (place.node, tuple(place.tail), place.tokens) == (node, tail, len(tokens)), name


def test_of_equal_paths_the_first_is_found() -> None:
    tree = TokenTree.of((given(1, ROOT, 1), sampled(2, 1, 5), sampled(3, 1, 5)))
    assert tree.attach((1, 5, 7)).node == 2


def test_of_equal_paths_it_is_the_same_before_and_after_a_restart() -> None:
    """Turn 2 is committed after the given node 3 of a request that began with the same tokens."""
    nodes = given(1, ROOT, 7), given(3, 1, 8), sampled(2, 1, 8)
    live, paths = TokenTree(), {ROOT: extended(hashlib.blake2b(digest_size=DIGEST_BYTES), ())}
    for node in nodes:
        paths[node.id] = extended(paths[node.parent], node.token_ids)
        live.add(node, paths[node.id])
    assert live.attach((7, 8, 9)).node == TokenTree.of(nodes).attach((7, 8, 9)).node == 2


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (given(7, 4, 1), "was cut"),
        (given(2, 1, 1), "no new node"),
        (given(7, 1), "no new node"),
        (given(7, 8, 1), "not a node before it"),
    ],
)
def test_a_node_that_cannot_be_there_is_refused(node, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        TokenTree.of((*TREE, node))


def chain(turns: int, length: int) -> list[Node]:
    """Return the nodes of one branch: a given and a sampled span of `length` tokens for each turn."""
    nodes = []
    for turn in range(turns):
        nodes.append(given(2 * turn + 1, 2 * turn, *[turn] * length))
        nodes.append(sampled(2 * turn + 2, 2 * turn + 1, *[turn] * length))
    return nodes


def test_a_request_costs_its_own_tokens_whatever_the_turns_and_forks() -> None:
    work = []
    for turns in (1, 10, 100):
        nodes = chain(turns, 50)
        # Branches that differ from the request in their last token only: a walk would compare each of them.
        path = [token for node in nodes for token in node.token_ids]
        forks = [given(len(nodes) + 1 + fork, ROOT, *path[:-1], 1000 + fork) for fork in range(turns)]
        tree = TokenTree.of((*nodes, *forks))
        assert tree.attach((*path, 7)).node == len(nodes)
        work.append((tree.work.tokens, tree.work.lookups, len(path) + 1))
    assert [tokens for tokens, _, _ in work] == [asked for _, _, asked in work]
    assert all(lookups <= asked for _, lookups, asked in work)
    # A hundred times the turns make a hundred times the lookups, not ten thousand.
    assert [lookups for _, lookups, _ in work] == [2, 20, 200]


def test_the_requests_of_an_episode_cost_their_own_tokens_together() -> None:
    tree, asked = TokenTree(), 0
    for node in chain(200, 3):
        path = [token for above in tree.path(node.parent) for token in above.token_ids]
        request = (*path, *node.token_ids)
        place = tree.attach(request)
        assert (place.node, len(place.tail)) == (node.parent, 3)
        asked += len(request)
        tree.add(node, place.path)
    assert tree.work.tokens == asked
    assert tree.work.lookups <= asked / 3
