"""Deliveries: the part of a step's groups that each trainer rank receives.

Every rank receives an outline of every group: the counts to sum and a digest of the contents. Tokens go only to the
rank that computes them, and only when no sums of their group are held. Pure, without torch: the coordinator decides
from the progress that rank 0 reports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rljob_runtime.protocols.trajectory import Group, PromptKey
from rljob_runtime.training.batch.rows import Block, Share, block_of, minibatches, shares_of
from rljob_runtime.training.row_rules import RowRules

DIGEST_BYTES = 16


@dataclass(frozen=True)
class Outline:
    """A group without its tokens.

    `tokens` and `sequences` count what there is to sum. `digest` covers tokens, where they stand, log-probabilities and
    advantages. Equal outlines describe the same group with the same contents.
    """

    prompt: PromptKey
    tokens: int
    sequences: int
    highest_token: int
    digest: bytes


@dataclass(frozen=True)
class Progress:
    """Progress of the trainer's ranks.

    `done` is the last completed step. `held` maps the groups of the next step whose sums are held. `rules` are the row
    rules of the ranks. `advantages` holds those that the user's function computed, by group.
    """

    done: int
    held: Mapping[PromptKey, Outline]
    rules: RowRules
    advantages: Mapping[PromptKey, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivery:
    """The part of a command that all ranks receive.

    `updates` holds the groups of each update, ordered by prompt. `keeps` is true when the held sums count; their groups
    then travel without rows.
    """

    updates: tuple[tuple[Outline, ...], ...]
    keeps: bool = True

    @property
    def groups(self) -> list[Outline]:
        """Groups of all updates."""
        return [group for update in self.updates for group in update]


Shares = tuple[Share, ...]
"""Rows of one rank, for each update."""
EMPTY_DELIVERY = Delivery(())
"""Delivery for a step that is done or is not the next one. The ranks answer it from their state."""


def plan_contribute(
    progress: Progress, step: int, groups: Sequence[Group], ranks: int
) -> tuple[Delivery, list[Shares]]:
    """Plan groups whose sums are computed early, with each rank's rows.

    When a held group has other contents, no held sum counts. Raises `ValueError`, which names the fault, for a group
    that cannot be trained on.
    """
    if step != progress.done + 1:
        return EMPTY_DELIVERY, [() for _ in range(ranks)]
    blocks = check_groups(groups, progress.rules, progress.advantages)
    outlines = {prompt: outline(prompt, block) for prompt, block in blocks.items()}
    keeps = _agree(progress.held, outlines)
    fresh = [prompt for prompt in blocks if not keeps or prompt not in progress.held]
    shares = shares_of([blocks[prompt] for prompt in fresh], progress.rules, ranks)
    return Delivery((tuple(outlines[prompt] for prompt in fresh),), keeps), [(share,) for share in shares]


def plan_train(progress: Progress, step: int, groups: Sequence[Group], ranks: int) -> tuple[Delivery, list[Shares]]:
    """Plan all groups of a step, with each rank's rows of the groups that are not held.

    Sums cannot be taken apart, so the held sums count completely or not at all. Raises `ValueError`, which names the
    fault, for a group that cannot be trained on.
    """
    if step != progress.done + 1:
        return EMPTY_DELIVERY, [() for _ in range(ranks)]
    blocks = check_groups(groups, progress.rules, progress.advantages)
    outlines = {prompt: outline(prompt, block) for prompt, block in blocks.items()}
    keeps = progress.held.keys() <= blocks.keys() and _agree(progress.held, outlines)
    updates = minibatches(list(blocks), progress.rules.minibatches)
    fresh = [[prompt for prompt in update if not keeps or prompt not in progress.held] for update in updates]
    shares = [shares_of([blocks[prompt] for prompt in prompts], progress.rules, ranks) for prompts in fresh]
    planned = tuple(tuple(outlines[prompt] for prompt in update) for update in updates)
    return Delivery(planned, keeps), list(zip(*shares, strict=True))


def plan_accept(progress: Progress, step: int, groups: Sequence[Group], ranks: int) -> tuple[Delivery, list[Shares]]:
    """Plan the groups of another worker's contribution.

    No rank needs their tokens, so there are no shares. Raises `ValueError`, which names the fault, for a group that
    cannot be trained on.
    """
    if step != progress.done + 1:
        return EMPTY_DELIVERY, []
    blocks = check_groups(groups, progress.rules, progress.advantages)
    return Delivery((tuple(outline(prompt, block) for prompt, block in blocks.items()),)), []


def _agree(held: Mapping[PromptKey, Outline], outlines: Mapping[PromptKey, Outline]) -> bool:
    """Return whether the groups that are in both mappings are equal."""
    return all(held[prompt] == group for prompt, group in outlines.items() if prompt in held)


def check_groups(
    groups: Sequence[Group], rules: RowRules, advantages: Mapping[PromptKey, Sequence[float]]
) -> dict[PromptKey, Block]:
    """Return blocks with advantages, ordered by prompt.

    `advantages` holds those of the user's function; other groups get those of the rules.
    Raises `ValueError`, which names the fault, for a group that cannot be trained on.
    """
    if not groups:
        raise ValueError("no groups to train on")
    blocks: dict[PromptKey, Block] = {}
    for group in sorted(groups, key=lambda g: g.prompt):
        if group.prompt in blocks:
            raise ValueError(f"group {group.prompt} occurs twice")
        blocks[group.prompt] = block_of(group, rules.advantages, advantages.get(group.prompt))
    return blocks


def outline(prompt: PromptKey, block: Block) -> Outline:
    """Return the outline of a block."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    parts = [block.prompt_token_ids]
    lengths = [len(block.prompt_token_ids)]
    for sample in block.samples:
        lengths += (len(sample.token_ids), 0 if sample.layout is None else len(sample.layout.spans))
        parts.append(sample.token_ids)
        if (layout := sample.layout) is not None:
            lengths += (*layout.spans, *layout.given, *layout.sampled)
            parts.append(layout.given_token_ids)
    digest.update(np.array(lengths, dtype=np.int64).data)
    digest.update(np.array([sample.advantage for sample in block.samples], dtype=np.float64).data)
    for tokens in parts:
        digest.update(np.ascontiguousarray(tokens).data)
    for sample in block.samples:
        digest.update(np.ascontiguousarray(sample.logprobs).data)
    highest = max((int(tokens.max()) for tokens in parts if len(tokens)), default=0)
    count = sum(len(sample.token_ids) for sample in block.samples)
    return Outline(prompt, count, len(block.samples), highest, digest.digest())
