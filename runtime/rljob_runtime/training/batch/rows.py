"""Rows: who computes which responses of a step, planned from their lengths, and their tokens as arrays.

A row holds blocks: a prompt and some of the responses to it, which share one computation of the prompt. Blocks are
placed by first fit, longest first, into rows of at most the token budget (a response longer than that gets a row of its
own). Everything is a pure function of its input. The coordinator plans the rows and sends each rank its own: no torch
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.training.algorithm.advantage import group_advantages
from rljob_runtime.training.row_rules import RowRules

Item = TypeVar("Item")
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating[Any]]
"""float32 as the coordinator keeps log-probabilities, float64 where they come as Python's floats."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One response to learn from: its tokens, the sampler's logprobs of them, and its advantage."""

    token_ids: Ints
    logprobs: Floats
    advantage: float


@dataclass(frozen=True, eq=False)
class Block:
    """A prompt and some of the responses to it: what shares one computation of the prompt."""

    prompt_token_ids: Ints
    samples: tuple[Sample, ...]

    @property
    def tokens(self) -> int:
        """Input tokens of this block in a row: the last token of a response is left out, it predicts nothing."""
        return len(self.prompt_token_ids) + sum(len(sample.token_ids) - 1 for sample in self.samples)


def block_of(group: Group, *, by_std: bool) -> Block:
    """The group as a block, with advantages. Raises `ValueError` for what cannot be trained on."""
    if not group.prompt_token_ids:
        raise ValueError(f"prompt {group.prompt} has no tokens")
    rewards = [scored.reward for scored in group.responses]
    samples = []
    for scored, advantage in zip(group.responses, group_advantages(rewards, by_std=by_std), strict=True):
        response = scored.response
        if not len(response.token_ids) or len(response.token_ids) != len(response.logprobs):
            raise ValueError(
                f"response {response.key} has {len(response.token_ids)} tokens and {len(response.logprobs)} logprobs; "
                "it must have one logprob a token, and at least one token"
            )
        logprobs: Floats = np.asarray(response.logprobs)
        if not np.isfinite(logprobs).all():
            raise ValueError(f"response {response.key} has logprobs that are not finite")
        samples.append(Sample(np.asarray(response.token_ids, dtype=np.int32), logprobs, advantage))
    return Block(np.asarray(group.prompt_token_ids, dtype=np.int32), tuple(samples))


def split(block: Block, budget: int) -> list[Block]:
    """Pieces of at most `budget` tokens, each with the prompt and as many responses as fit (at least one)."""
    pieces: list[Block] = []
    taken: list[Sample] = []
    free = whole = budget - len(block.prompt_token_ids)
    for sample in sorted(block.samples, key=lambda s: -len(s.token_ids)):
        inputs = len(sample.token_ids) - 1
        if taken and inputs > free:
            pieces.append(Block(block.prompt_token_ids, tuple(taken)))
            taken, free = [], whole
        taken.append(sample)
        free -= inputs
    if taken:
        pieces.append(Block(block.prompt_token_ids, tuple(taken)))
    return pieces


def plan_rows(blocks: Iterable[Block], budget: int) -> list[list[Block]]:
    """Blocks of each row: first fit, longest first. The order of equal blocks is that of the input."""
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
    """Rows of each rank, as many for one as for another (filled up with empty rows): longest row first, to the rank
    with the fewest tokens among those with the fewest rows."""
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
    """Consecutive shares of the items, sizes differing by one at most; never an empty one."""
    count = min(count, len(items))
    bounds = [len(items) * i // count for i in range(count + 1)] if count else []
    return [list(items[start:end]) for start, end in pairwise(bounds)]


@dataclass(frozen=True, eq=False)
class Row:
    """Blocks end to end. `B` blocks, `S` responses in the order of their blocks."""

    prompts: Ints
    """[B] tokens of each prompt"""
    samples: Ints
    """[B] responses of each block"""
    responses: Ints
    """[S] tokens of each response"""
    advantages: npt.NDArray[np.float64]
    """[S]"""
    prompt_token_ids: Ints
    """Those of all prompts, end to end."""
    token_ids: Ints
    """Those of all responses, end to end."""
    logprobs: Floats
    """One for each of `token_ids`."""


@dataclass(frozen=True, eq=False)
class Share:
    """What one rank computes for one update: `blocks` has the number of blocks of each row, `joined` all of these."""

    blocks: Ints
    joined: Row

    def rows(self) -> Iterator[Row]:
        """The rows, as views. One without blocks is there for the other ranks' sake."""
        whole = self.joined
        block_ends = list(accumulate(self.blocks.tolist(), initial=0))
        sample_ends = np.concatenate([[0], whole.samples.cumsum(dtype=np.int64)])
        prompt_ends = np.concatenate([[0], whole.prompts.cumsum(dtype=np.int64)])
        token_ends = np.concatenate([[0], whole.responses.cumsum(dtype=np.int64)])
        for first, last in pairwise(block_ends):
            samples = slice(sample_ends[first], sample_ends[last])
            prompts = slice(prompt_ends[first], prompt_ends[last])
            tokens = slice(token_ends[samples.start], token_ends[samples.stop])
            yield Row(
                prompts=whole.prompts[first:last],
                samples=whole.samples[first:last],
                responses=whole.responses[samples],
                advantages=whole.advantages[samples],
                prompt_token_ids=whole.prompt_token_ids[prompts],
                token_ids=whole.token_ids[tokens],
                logprobs=whole.logprobs[tokens],
            )


def row_of(blocks: Sequence[Block]) -> Row:
    """These blocks end to end, copied into arrays of their own."""
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
    """The rows of each rank, by rank."""
    work = sum(block.tokens for block in blocks)
    # Ranks share the work even where all of it would fit into one row.
    budget = min(rules.budget, -(-work // ranks))
    shared = share_rows(plan_rows(blocks, budget), ranks)
    return [
        Share(np.array([len(row) for row in rows], dtype=np.int32), row_of([block for row in rows for block in row]))
        for rows in shared
    ]
