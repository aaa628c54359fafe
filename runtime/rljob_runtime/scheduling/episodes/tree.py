"""Token tree: the nodes of an episode, and the place where a request attaches.

A request attaches to the deepest node whose path is a prefix of its tokens. Everything after that is new: a client that
rewrites its history makes a fork, and no node ever changes.

A walk that compares a request with every child of every node on its path costs the tokens times the forks. Here, each
node is found by a digest of all tokens of its path. A request is digested once, and its running digest is looked up at
the lengths where paths end. So a request costs its own tokens, whatever the number of turns and forks.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from rljob_runtime.scheduling.episodes.node import ROOT, Node

DIGEST_BYTES = 16
"""Bytes of a path's digest. Two of 2^32 paths collide with a probability of 2^-65."""
_TOKEN = array("i")


def packed(tokens: Sequence[int]) -> array[int]:
    """Return tokens as an array of 4 bytes a token, without a copy of one."""
    return tokens if isinstance(tokens, array) and tokens.typecode == _TOKEN.typecode else array("i", tokens)


@dataclass(frozen=True)
class Attachment:
    """The place of a request: its deepest node (ROOT: none), and the tokens after that node's path.

    `path` is the digest of all its tokens.
    """

    node: int
    tail: array[int]
    tokens: int
    """Tokens of the request."""
    path: hashlib.blake2b = field(repr=False, compare=False)


@dataclass
class AttachWork:
    """Work of all attachments: tokens that were digested, and lookups of digests."""

    tokens: int = 0
    lookups: int = 0


class TokenTree:
    """The nodes of one episode, by id."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self._found: dict[bytes, int] = {}
        """Nodes that a request may attach to, by the digest of their path. Of equal paths it is the lowest id, in
        whatever order they were added: a turn gets its id before it is committed, and a restart adds nodes by id."""
        self._ends: list[int] = []
        """Lengths of these paths, sorted, each once."""
        self._lengths = {ROOT: 0}
        self._children: Counter[int] = Counter()
        self.work = AttachWork()

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> TokenTree:
        """Build the tree of stored nodes. Raises `ValueError` for a node without its parent."""
        tree, paths = cls(), {ROOT: _no_tokens()}
        for node in sorted(nodes, key=lambda one: one.id):
            if node.parent not in paths:
                raise ValueError(f"node {node.id} has the parent {node.parent}, which is not a node before it")
            paths[node.id] = extended(paths[node.parent], node.token_ids)
            tree.add(node, paths[node.id])
        return tree

    @property
    def nodes(self) -> Mapping[int, Node]:
        """All nodes by id, in the order in which they were added."""
        return MappingProxyType(self._nodes)

    def attach(self, tokens: Sequence[int]) -> Attachment:
        """Return the deepest node whose path's tokens are a prefix of these tokens, and what comes after it."""
        mine, path = packed(tokens), _no_tokens()
        view, start, deepest = memoryview(mine), 0, ROOT
        for end in self._ends[: bisect_right(self._ends, len(mine))]:
            path.update(view[start:end])
            start = end
            deepest = self._found.get(path.digest(), deepest)
            self.work.lookups += 1
        path.update(view[start:])
        self.work.tokens += len(mine)
        return Attachment(deepest, mine[self._lengths[deepest] :], len(mine), path)

    def add(self, node: Node, path: hashlib.blake2b) -> None:
        """Add a node below its parent. `path`: the digest of its own path (`Attachment.path`, `extended`).

        Raises `ValueError` for a node that cannot be there: without tokens, below a cut turn, or with a used id.
        """
        above = self._nodes.get(node.parent)
        if node.id in self._nodes or node.id <= node.parent or not len(node.token_ids):
            raise ValueError(f"node {node.id} below {node.parent} is no new node with tokens")
        if above is not None and above.is_cut:
            raise ValueError(f"node {node.id} cannot extend node {above.id}, whose turn was cut at its token limit")
        self._nodes[node.id] = node
        length = self._lengths[node.id] = self._lengths[node.parent] + len(node.token_ids)
        self._children[node.parent] += 1
        if node.is_cut:
            return
        known = self._found.setdefault(path.digest(), node.id)
        self._found[path.digest()] = min(known, node.id)
        place = bisect_right(self._ends, length)
        if not place or self._ends[place - 1] != length:
            insort(self._ends, length)

    def children(self, node: int) -> int:
        """Return how many children a node has."""
        return self._children[node]

    def path(self, node: int) -> list[Node]:
        """Return the nodes from the root's child to this node."""
        found: list[Node] = []
        while node != ROOT:
            found.append(self._nodes[node])
            node = found[-1].parent
        return found[::-1]

    def leaves(self) -> list[Node]:
        """Return the sampled nodes that no sampled one follows, in the order of their ids.

        What a turn was given and never answered is no part of an episode, and the store does not have it.
        """
        found: list[Node] = []
        inner: set[int] = set()
        for node in (self._nodes[one] for one in sorted(self._nodes, reverse=True)):
            if node.is_sampled and node.id not in inner:
                found.append(node)
            if node.is_sampled or node.id in inner:
                inner.add(node.parent)
        return found[::-1]


def extended(path: hashlib.blake2b, tokens: Sequence[int]) -> hashlib.blake2b:
    """Return the digest of a path and these tokens after it."""
    longer = path.copy()
    longer.update(memoryview(packed(tokens)))
    return longer


def _no_tokens() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=DIGEST_BYTES)
