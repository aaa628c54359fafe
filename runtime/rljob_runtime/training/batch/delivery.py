"""Deliveries: what the trainer's ranks are given of a step's groups, and what they are not given again.

Every rank learns of every group what it takes to agree with the others: how much there is to sum, and a digest of the
contents. Tokens go to the rank that computes them, and only where no sums of their group are held. Pure, and without
torch: the coordinator decides by what rank 0 says of its progress.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.protocols.trajectory import Group, PromptKey
from rljob_runtime.training.batch.rows import Block, Share, block_of, minibatches, shares_of
from rljob_runtime.training.row_rules import RowRules

DIGEST_BYTES = 16


@dataclass(frozen=True)
class Outline:
    """A group without its tokens. `tokens`, `sequences`: what there is to sum. `digest`: of tokens, log-probabilities
    and advantages. Equal outlines are of the same group with the same contents."""

    prompt: PromptKey
    tokens: int
    sequences: int
    highest_token: int
    digest: bytes


@dataclass(frozen=True)
class Progress:
    """Where the ranks are. `done`: the last step. `held`: the groups of the step after it whose sums are in. `rules`:
    how they want rows."""

    done: int
    held: Mapping[PromptKey, Outline]
    rules: RowRules


@dataclass(frozen=True)
class Delivery:
    """What all ranks are told of a command. `updates`: the groups of each update, in the order of their prompts.
    `keeps`: whether the sums that are held count; those of their groups come without rows then."""

    updates: tuple[tuple[Outline, ...], ...]
    keeps: bool = True

    @property
    def groups(self) -> list[Outline]:
        """Of all updates."""
        return [group for update in self.updates for group in update]


Shares = tuple[Share, ...]
"""One rank's rows, for each update."""
NOTHING = Delivery(())
"""For a step that is done, or whose turn it is not: the ranks know what to answer."""


def for_contribute(progress: Progress, step: int, groups: Sequence[Group], ranks: int) -> tuple[Delivery, list[Shares]]:
    """Those of `groups` that are not held, to be summed early, with each rank's rows. Where one came with other
    contents before, nothing that is held counts. Raises `ValueError` naming what is wrong with a group."""
    if step != progress.done + 1:
        return NOTHING, [() for _ in range(ranks)]
    blocks = checked(groups, progress.rules)
    outlines = {prompt: outline(prompt, block) for prompt, block in blocks.items()}
    keeps = _agree(progress.held, outlines)
    fresh = [prompt for prompt in blocks if not keeps or prompt not in progress.held]
    shares = shares_of([blocks[prompt] for prompt in fresh], progress.rules, ranks)
    return Delivery((tuple(outlines[prompt] for prompt in fresh),), keeps), [(share,) for share in shares]


def for_train(progress: Progress, step: int, groups: Sequence[Group], ranks: int) -> tuple[Delivery, list[Shares]]:
    """All groups of a step, with each rank's rows of those that are not held. Sums cannot be taken apart: what is held
    counts as a whole or not at all. Raises `ValueError` naming what is wrong with a group."""
    if step != progress.done + 1:
        return NOTHING, [() for _ in range(ranks)]
    blocks = checked(groups, progress.rules)
    outlines = {prompt: outline(prompt, block) for prompt, block in blocks.items()}
    keeps = progress.held.keys() <= blocks.keys() and _agree(progress.held, outlines)
    updates = minibatches(list(blocks), progress.rules.minibatches)
    fresh = [[prompt for prompt in update if not keeps or prompt not in progress.held] for update in updates]
    shares = [shares_of([blocks[prompt] for prompt in prompts], progress.rules, ranks) for prompts in fresh]
    told = tuple(tuple(outlines[prompt] for prompt in update) for update in updates)
    return Delivery(told, keeps), list(zip(*shares, strict=True))


def for_accept(progress: Progress, step: int, groups: Sequence[Group], ranks: int) -> tuple[Delivery, list[Shares]]:
    """The groups of a contribution that another worker made. No rank needs their tokens: there are no shares. Raises
    `ValueError` naming what is wrong with a group."""
    if step != progress.done + 1:
        return NOTHING, []
    blocks = checked(groups, progress.rules)
    return Delivery((tuple(outline(prompt, block) for prompt, block in blocks.items()),)), []


def _agree(held: Mapping[PromptKey, Outline], outlines: Mapping[PromptKey, Outline]) -> bool:
    """Whether the groups that are in both are the same in both."""
    return all(held[prompt] == group for prompt, group in outlines.items() if prompt in held)


def checked(groups: Sequence[Group], rules: RowRules) -> dict[PromptKey, Block]:
    """Blocks with advantages, in the order of their prompts. Raises `ValueError` naming what is wrong with a group."""
    if not groups:
        raise ValueError("no groups to train on")
    blocks: dict[PromptKey, Block] = {}
    for group in sorted(groups, key=lambda g: g.prompt):
        if group.prompt in blocks:
            raise ValueError(f"group {group.prompt} comes twice")
        blocks[group.prompt] = block_of(group, by_std=rules.by_std)
    return blocks


def outline(prompt: PromptKey, block: Block) -> Outline:
    """What all ranks are told of it."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    lengths = [len(block.prompt_token_ids), *(len(sample.token_ids) for sample in block.samples)]
    digest.update(np.array(lengths, dtype=np.int64).data)
    digest.update(np.array([sample.advantage for sample in block.samples], dtype=np.float64).data)
    digest.update(np.ascontiguousarray(block.prompt_token_ids).data)
    for sample in block.samples:
        digest.update(np.ascontiguousarray(sample.token_ids).data)
        digest.update(np.ascontiguousarray(sample.logprobs).data)
    highest = max(int(part.max()) for part in (block.prompt_token_ids, *(s.token_ids for s in block.samples)))
    return Outline(prompt, sum(lengths[1:]), len(block.samples), highest, digest.digest())
