"""Nodes: the token spans of an episode's tree."""

from __future__ import annotations

from collections.abc import Sequence
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
