"""Sequences: what an episode gives to training, one token sequence for each leaf of its tree.

A sampled node that several leaves share is trained on in the first of them, and is given in the others. So the sum of
the gradients over all sequences counts each sampled token exactly once, in its own context. Every loss token comes from
a sampled node, with the logprob and the version that its engine reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_runtime.scheduling.episodes.node import Node
from rljob_runtime.scheduling.episodes.tree import TokenTree


@dataclass(frozen=True)
class SampledSpan:
    """A sampled node in the sequence that trains on it, and the tokens between it and the one before."""

    given: Sequence[int]
    node: Node


@dataclass(frozen=True)
class TrainingSequence:
    """The tokens of a path up to the last one with a loss. `leaf`: the node at whose path it was found."""

    leaf: int
    spans: tuple[SampledSpan, ...]

    @property
    def token_ids(self) -> list[int]:
        """All tokens, given and sampled."""
        return [token for span in self.spans for part in (span.given, span.node.token_ids) for token in part]

    @property
    def loss_mask(self) -> list[bool]:
        """Whether each token is trained on."""
        parts = ((len(span.given), len(span.node.token_ids)) for span in self.spans)
        return [mask for given, sampled in parts for mask in [False] * given + [True] * sampled]


def training_sequences(tree: TokenTree) -> tuple[TrainingSequence, ...]:
    """Return the sequences of a tree's leaves, without those that have nothing left to train on."""
    trained: set[int] = set()
    found: list[TrainingSequence] = []
    for leaf in tree.leaves():
        spans: list[SampledSpan] = []
        given: list[int] = []
        for node in tree.path(leaf.id):
            if node.is_sampled and node.id not in trained:
                trained.add(node.id)
                spans.append(SampledSpan(tuple(given), node))
                given = []
            else:
                given += node.token_ids
        if spans:
            found.append(TrainingSequence(leaf.id, tuple(spans)))
    return tuple(found)
