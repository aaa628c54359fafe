"""Rows: plans which rank computes which responses of a step, and packs their tokens into arrays.

A row holds blocks. A block is a prompt and some of its responses, which share one computation of the prompt. First fit,
longest first, places blocks into rows of at most the token budget. A response longer than the budget gets its own row.
Everything is a pure function of its input, without torch: the coordinator plans the rows and sends each rank its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rljob_runtime.protocols.trajectory import FinishReason, Group
from rljob_runtime.training.algorithm.advantage import ScoredGroup, group_advantages
from rljob_runtime.training.algorithm.overlong import overlong_penalty
from rljob_runtime.training.row_rules import AdvantageRules, RowRules

Item = TypeVar("Item")
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating[Any]]
"""float32 where the coordinator keeps log-probabilities, float64 where they are Python floats."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One response to train on: its tokens, the sampler's logprobs of them, and its advantage."""

    token_ids: Ints
    logprobs: Floats
    advantage: float


@dataclass(frozen=True, eq=False)
class Block:
    """A prompt and some of its responses, which share one computation of the prompt."""

    prompt_token_ids: Ints
    samples: tuple[Sample, ...]

    @property
    def tokens(self) -> int:
        """Input tokens of the block in a row.

        The last token of a response predicts nothing and is left out.
        """
        return len(self.prompt_token_ids) + sum(len(sample.token_ids) - 1 for sample in self.samples)


def block_of(group: Group, rules: AdvantageRules, given: Sequence[float] | None = None) -> Block:
    """Convert a group into a block with advantages.

    The block has the responses that enter the loss, perhaps none. `given` holds the advantages that the user's function
    computed. Raises `ValueError` for a group that cannot be
    trained on.
    """
    if not group.prompt_token_ids:
        raise ValueError(f"prompt {group.prompt} has no tokens")
    samples = []
    advantages = given
    if advantages is None:
        rewards = scored_group(group, rules).rewards
        advantages = group_advantages(rewards, by_std=rules.by_std, baseline=rules.baseline)
    for scored, advantage in zip(group.responses, advantages, strict=True):
        response = scored.response
        if not len(response.token_ids) or len(response.token_ids) != len(response.logprobs):
            raise ValueError(
                f"response {response.key} has {len(response.token_ids)} tokens and {len(response.logprobs)} logprobs; "
                "it must have one logprob a token, and at least one token"
            )
        logprobs: Floats = np.asarray(response.logprobs)
        if not np.isfinite(logprobs).all():
            raise ValueError(f"response {response.key} has logprobs that are not finite")
        if not (rules.mask_overlong and response.finish_reason is FinishReason.LENGTH):
            samples.append(Sample(np.asarray(response.token_ids, dtype=np.int32), logprobs, advantage))
    return Block(np.asarray(group.prompt_token_ids, dtype=np.int32), tuple(samples))


def scored_group(group: Group, rules: AdvantageRules) -> ScoredGroup:
    """Return what advantages depend on. Responses near the limit are penalised.

    Masked responses count for the baseline of the others.
    """
    responses = [scored.response for scored in group.responses]
    lengths = tuple(len(response.token_ids) for response in responses)
    penalties = (overlong_penalty(length, rules.limit, rules.overlong_penalty_tokens) for length in lengths)
    rewards = (scored.reward + penalty for scored, penalty in zip(group.responses, penalties, strict=True))
    truncated = tuple(response.finish_reason is FinishReason.LENGTH for response in responses)
    return ScoredGroup(tuple(rewards), lengths, truncated)


def split(block: Block, budget: int) -> list[Block]:
    """Split a block into pieces of at most `budget` tokens.

    Each piece has the prompt and as many responses as fit, at least one.
    """
    pieces: list[Block] = []
    taken: list[Sample] = []
    free = room_for_responses = budget - len(block.prompt_token_ids)
    for sample in sorted(block.samples, key=lambda s: -len(s.token_ids)):
        inputs = len(sample.token_ids) - 1
        if taken and inputs > free:
            pieces.append(Block(block.prompt_token_ids, tuple(taken)))
            taken, free = [], room_for_responses
        taken.append(sample)
        free -= inputs
    if taken:
        pieces.append(Block(block.prompt_token_ids, tuple(taken)))
    return pieces


def plan_rows(blocks: Iterable[Block], budget: int) -> list[list[Block]]:
    """Place blocks into rows by first fit, longest first.

    Equal blocks keep the order of the input.
    """
    pieces = [(piece.tokens, piece) for block in blocks for piece in split(block, budget)]
    rows: list[list[Block]] = []
    room: list[int] = []
    for tokens, piece in sorted(pieces, key=lambda item: -item[0]):
        place = next((i for i, free in enumerate(room) if tokens <= free), None)
        if place is None:
            rows.append([])
            room.append(budget)
            place = len(rows) - 1
        rows[place].append(piece)
        room[place] -= tokens
    return rows


def share_rows(rows: Sequence[list[Block]], ranks: int) -> list[list[list[Block]]]:
    """Distribute rows over ranks, the same number to each.

    The longest row goes first, to the rank with the fewest tokens among those with the fewest rows. Empty rows fill up
    the difference.
    """
    shares: list[list[list[Block]]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    sized = [(sum(block.tokens for block in row), row) for row in rows]
    for tokens, row in sorted(sized, key=lambda item: -item[0]):
        rank = min(range(ranks), key=lambda r: (len(shares[r]), load[r], r))
        shares[rank].append(row)
        load[rank] += tokens
    longest = max(map(len, shares))
    return [share + [[] for _ in range(longest - len(share))] for share in shares]


def minibatches(items: Sequence[Item], count: int) -> list[list[Item]]:
    """Split items into consecutive shares whose sizes differ by at most one.

    No share is empty.
    """
    count = min(count, len(items))
    bounds = [len(items) * i // count for i in range(count + 1)] if count else []
    return [list(items[start:end]) for start, end in pairwise(bounds)]


@dataclass(frozen=True, eq=False)
class Row:
    """Blocks end to end: `B` blocks, and `S` responses in the order of their blocks."""

    prompts: Ints
    """[B] tokens of each prompt"""
    samples: Ints
    """[B] responses of each block"""
    responses: Ints
    """[S] tokens of each response"""
    advantages: npt.NDArray[np.float64]
    """[S]"""
    prompt_token_ids: Ints
    """Tokens of all prompts, end to end."""
    token_ids: Ints
    """Tokens of all responses, end to end."""
    logprobs: Floats
    """One value for each of `token_ids`."""


@dataclass(frozen=True, eq=False)
class Share:
    """The work of one rank in one update.

    `blocks` holds the number of blocks of each row. `joined` holds the blocks of all rows.
    """

    blocks: Ints
    joined: Row

    def rows(self) -> Iterator[Row]:
        """Yield the rows as views.

        A rank yields a row without blocks when other ranks have more rows.
        """
        joined = self.joined
        block_ends = list(accumulate(self.blocks.tolist(), initial=0))
        sample_ends = np.concatenate([[0], joined.samples.cumsum(dtype=np.int64)])
        prompt_ends = np.concatenate([[0], joined.prompts.cumsum(dtype=np.int64)])
        token_ends = np.concatenate([[0], joined.responses.cumsum(dtype=np.int64)])
        for first, last in pairwise(block_ends):
            samples = slice(sample_ends[first], sample_ends[last])
            prompts = slice(prompt_ends[first], prompt_ends[last])
            tokens = slice(token_ends[samples.start], token_ends[samples.stop])
            yield Row(
                prompts=joined.prompts[first:last],
                samples=joined.samples[first:last],
                responses=joined.responses[samples],
                advantages=joined.advantages[samples],
                prompt_token_ids=joined.prompt_token_ids[prompts],
                token_ids=joined.token_ids[tokens],
                logprobs=joined.logprobs[tokens],
            )


def row_of(blocks: Sequence[Block]) -> Row:
    """Copy blocks end to end into new arrays."""
    samples = [sample for block in blocks for sample in block.samples]
    return Row(
        prompts=np.array([len(block.prompt_token_ids) for block in blocks], dtype=np.int32),
        samples=np.array([len(block.samples) for block in blocks], dtype=np.int32),
        responses=np.array([len(sample.token_ids) for sample in samples], dtype=np.int32),
        advantages=np.array([sample.advantage for sample in samples], dtype=np.float64),
        prompt_token_ids=_joined([block.prompt_token_ids for block in blocks], np.int32),
        token_ids=_joined([sample.token_ids for sample in samples], np.int32),
        logprobs=_joined([sample.logprobs for sample in samples]),
    )


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: type[np.int32] | None = None) -> npt.NDArray[Any]:
    return np.concatenate(parts, dtype=dtype) if parts else np.empty(0, dtype or np.float32)


def shares_of(blocks: Sequence[Block], rules: RowRules, ranks: int) -> list[Share]:
    """Plan the rows of each rank, by rank.

    Blocks without responses give an empty row: the sums of their groups are zeros, computed as any others.
    """
    work = sum(block.tokens for block in blocks)
    # Ranks share the work even where one row can hold all of it.
    budget = min(rules.budget, -(-work // ranks))
    shared = share_rows(plan_rows(blocks, budget) or [[] for _ in blocks[:1]], ranks)
    return [
        Share(np.array([len(row) for row in rows], dtype=np.int32), row_of([block for row in rows for block in row]))
        for rows in shared
    ]
