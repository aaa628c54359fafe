"""Groups whose raw gradient sums are in before the step they belong to is trained (RollPacker, section 4.4).

Sums of several groups cannot be taken apart again. So what came early is used as a whole or not at all: if a group of
it is not among those the step is trained on, or is there with other contents, everything is computed anew. That is
always exact, and to refuse would lose a trainer that can do better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_runtime.scheduling.trajectory import PromptKey
from rljob_runtime.training.contribution import Contribution, combine
from rljob_runtime.training.packing import Block


@dataclass(frozen=True)
class EarlySums:
    """`blocks`: all that the sums in `total` depend on, besides the weights before its step."""

    blocks: Mapping[PromptKey, Block]
    total: Contribution

    def agrees_with(self, blocks: Mapping[PromptKey, Block]) -> bool:
        """Whether the groups that are here and in `blocks` are the same there."""
        return all(blocks[prompt] == block for prompt, block in self.blocks.items() if prompt in blocks)

    def part_of(self, blocks: Mapping[PromptKey, Block]) -> bool:
        """Whether `blocks` holds all that is here, with the same contents."""
        return self.blocks.keys() <= blocks.keys() and self.agrees_with(blocks)

    def missing(self, blocks: Mapping[PromptKey, Block]) -> dict[PromptKey, Block]:
        """Those of `blocks` that are not here."""
        return {prompt: block for prompt, block in blocks.items() if prompt not in self.blocks}

    def plus(self, blocks: Mapping[PromptKey, Block], contribution: Contribution) -> EarlySums:
        """With the sums of further groups, added in place. Raises `ValueError` for a group that is here already and for
        sums of another step."""
        return EarlySums({**self.blocks, **blocks}, combine([self.total, contribution]))
