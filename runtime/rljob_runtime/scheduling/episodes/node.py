"""Nodes: the token spans of an episode's tree, and which of them is its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rljob_runtime.protocols.trajectory import FinishReason

ROOT = 0
"""Parent of the nodes that a request begins with. It has no tokens and is no node itself."""


class NodeKind(StrEnum):
    """Where the tokens of a node come from."""

    GIVEN = "given"
    """From a client: messages, tool output, the template's tokens between them."""
    SAMPLED = "sampled"
    """From an engine, in one turn."""


@dataclass(frozen=True)
class Node:
    """Consecutive tokens of an episode. Ids count from 1 and rise from parent to child.

    Only a sampled node has logprobs (one a token), a weight version, the digest of the request that it answers, and a
    finish reason.
    """

    id: int
    parent: int
    kind: NodeKind
    token_ids: Sequence[int]
    logprobs: Sequence[float] = ()
    version: int | None = None
    digest: str = ""
    finish: FinishReason | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether an engine emitted the tokens."""
        return self.kind is NodeKind.SAMPLED

    @property
    def is_cut(self) -> bool:
        """Whether the turn ended at its token limit. Such a node has no children."""
        return self.finish is FinishReason.LENGTH


def last_answer(nodes: Mapping[int, Node]) -> Node:
    """Return the turn that rewards score: the newest one of the main conversation. There is at least one turn.

    The turn that was opened last may be one of a sub-agent, which works beside the agent. The main conversation is the
    one that began first. A client that rewrites what follows its first prompt forks below that prompt, so it is all
    below one child of the root. A sub-agent has a first prompt of its own.

    An agent that shortens its history changes its first prompt too. So a conversation that begins after the newest turn
    of the main one takes its place: what began before goes on beside it.
    """
    conversations: dict[int, int] = {}
    first, newest = dict[int, int](), dict[int, int]()
    for number in sorted(nodes):  # ids rise in the order in which turns were opened
        conversations[number] = begin = conversations.get(nodes[number].parent, number)
        if nodes[number].is_sampled:
            first.setdefault(begin, number)
            newest[begin] = number
    main, *others = first
    for one in others:
        if first[one] > newest[main]:
            main = one
    return nodes[newest[main]]
