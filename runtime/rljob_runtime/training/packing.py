"""Packing: responses laid end to end in one row, without padding, and every group's prompt only once.

A row holds blocks: a prompt and some of the responses to it. A response attends to its prompt and to itself, so the
prompt is computed once for all its siblings and the gradients that flow back into it add up: the same mathematics as
one sequence each, with `(n - 1) * len(prompt)` tokens fewer. The last token of a response predicts nothing that is
trained on and is left out of the input.

    row        p0 p1 p2 | a0 a1 | b0 b1 b2        responses are a0..a2 and b0..b3
    position    0  1  2 |  3  4 |  3  4  5
    predicts         a0,b0 a1 a2   b1 b2 b3

Blocks are placed by first fit, longest first, into rows of at most the token budget (a response longer than that gets a
row of its own). Everything is a pure function of its input: all ranks compute the same plan without talking.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from rljob_runtime.scheduling.trajectory import Group
from rljob_runtime.training.advantages import group_advantages
from rljob_runtime.training.config import Aggregation

Item = TypeVar("Item")


@dataclass(frozen=True)
class Sample:
    """One response to learn from: its tokens, the sampler's logprobs of them, and its advantage."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float


@dataclass(frozen=True)
class Block:
    """A prompt and some of the responses to it: what shares one computation of the prompt."""

    prompt_token_ids: tuple[int, ...]
    samples: tuple[Sample, ...]

    @property
    def tokens(self) -> int:
        """Input tokens of this block in a row."""
        return len(self.prompt_token_ids) + sum(len(sample.token_ids) - 1 for sample in self.samples)

    @property
    def highest_token(self) -> int:
        """The largest token id in it."""
        return max(max(self.prompt_token_ids), *(max(sample.token_ids) for sample in self.samples))


@dataclass(frozen=True)
class Segment:
    """Queries `[start, start + length)` attend to keys `[prefix_start, prefix_start + prefix_length)` and, causally, to
    themselves. A prompt is a segment without a prefix."""

    start: int
    length: int
    prefix_start: int
    prefix_length: int


@dataclass(frozen=True)
class MicroBatch:
    """One row. `T` input tokens, `U` rows of logits, `N` loss tokens; several targets may share a row of logits."""

    input_ids: Tensor
    """[T] int64"""
    position_ids: Tensor
    """[T] int64"""
    segments: tuple[Segment, ...]
    logit_rows: Tensor
    """[U] positions in the row whose logits are needed"""
    target_rows: Tensor
    """[N] which of the U rows predicts this target"""
    targets: Tensor
    """[N] int64"""
    behaviour: Tensor
    """[N] float64: the sampler's logprobs"""
    advantages: Tensor
    """[N] float64"""
    weights: Tensor
    """[N] float64: 1, or 1 / (length of the response)"""
    sequences: int

    def to(self, device: torch.device, dtype: torch.dtype) -> MicroBatch:
        """Indices to `device`; the figures also to `dtype`."""
        indices = (self.input_ids, self.position_ids, self.logit_rows, self.target_rows, self.targets)
        input_ids, position_ids, logit_rows, target_rows, targets = (index.to(device) for index in indices)
        figures = (self.behaviour, self.advantages, self.weights)
        behaviour, advantages, weights = (figure.to(device, dtype) for figure in figures)
        return MicroBatch(
            input_ids, position_ids, self.segments, logit_rows, target_rows, targets,
            behaviour, advantages, weights, self.sequences,
        )  # fmt: skip


def block_of(group: Group, *, by_std: bool) -> Block:
    """The group as a block, with advantages. Raises `ValueError` for what cannot be trained on."""
    if not group.prompt_token_ids:
        raise ValueError(f"prompt {group.prompt} has no tokens")
    rewards = [scored.reward for scored in group.responses]
    samples = []
    for scored, advantage in zip(group.responses, group_advantages(rewards, by_std=by_std), strict=True):
        response = scored.response
        if not response.token_ids or len(response.token_ids) != len(response.logprobs):
            raise ValueError(
                f"response {response.key} has {len(response.token_ids)} tokens and {len(response.logprobs)} logprobs; "
                "it must have one logprob a token, and at least one token"
            )
        if not all(map(math.isfinite, response.logprobs)):
            raise ValueError(f"response {response.key} has logprobs that are not finite")
        samples.append(Sample(tuple(response.token_ids), tuple(response.logprobs), advantage))
    return Block(group.prompt_token_ids, tuple(samples))


def split(block: Block, budget: int) -> list[Block]:
    """Pieces of at most `budget` tokens, each with the prompt and as many responses as fit (at least one)."""
    pieces: list[Block] = []
    taken: list[Sample] = []
    for sample in sorted(block.samples, key=lambda s: -len(s.token_ids)):
        if taken and Block(block.prompt_token_ids, (*taken, sample)).tokens > budget:
            pieces.append(Block(block.prompt_token_ids, tuple(taken)))
            taken = []
        taken.append(sample)
    if taken:
        pieces.append(Block(block.prompt_token_ids, tuple(taken)))
    return pieces


def plan_rows(blocks: Iterable[Block], budget: int) -> list[list[Block]]:
    """Blocks of each row: first fit, longest first. The order of equal blocks is that of the input."""
    pieces = [piece for block in blocks for piece in split(block, budget)]
    rows: list[list[Block]] = []
    room: list[int] = []
    for piece in sorted(pieces, key=lambda p: -p.tokens):
        place = next((i for i, free in enumerate(room) if piece.tokens <= free), None)
        if place is None:
            rows.append([])
            room.append(budget)
            place = len(rows) - 1
        rows[place].append(piece)
        room[place] -= piece.tokens
    return rows


def lay_out(row: Sequence[Block], aggregation: Aggregation) -> MicroBatch:
    """The tensors of one row. An empty row is one token without a target: a rank with nothing to do still has to take
    part in the collectives of a forward and a backward pass."""
    input_ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    logit_rows: list[int] = []
    target_rows: list[int] = []
    targets: list[int] = []
    behaviour: list[float] = []
    advantages: list[float] = []
    weights: list[float] = []
    for block in row:
        prompt_start, prompt_length = len(input_ids), len(block.prompt_token_ids)
        segments.append(Segment(prompt_start, prompt_length, prompt_start, 0))
        input_ids += block.prompt_token_ids
        positions += range(prompt_length)
        first_row = len(logit_rows)
        logit_rows.append(len(input_ids) - 1)
        for sample in block.samples:
            inputs, start = sample.token_ids[:-1], len(input_ids)
            if inputs:
                segments.append(Segment(start, len(inputs), prompt_start, prompt_length))
            target_rows += [first_row, *range(len(logit_rows), len(logit_rows) + len(inputs))]
            logit_rows += range(start, start + len(inputs))
            input_ids += inputs
            positions += range(prompt_length, prompt_length + len(inputs))
            length = len(sample.token_ids)
            targets += sample.token_ids
            behaviour += sample.logprobs
            advantages += [sample.advantage] * length
            weights += [1.0 if aggregation is Aggregation.TOKEN_MEAN else 1.0 / length] * length
    if not row:
        input_ids, positions, segments = [0], [0], [Segment(0, 1, 0, 0)]
    return MicroBatch(
        input_ids=torch.tensor(input_ids),
        position_ids=torch.tensor(positions),
        segments=tuple(segments),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        target_rows=torch.tensor(target_rows, dtype=torch.int64),
        targets=torch.tensor(targets, dtype=torch.int64),
        behaviour=torch.tensor(behaviour, dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.tensor(weights, dtype=torch.float64),
        sequences=sum(len(block.samples) for block in row),
    )


def minibatches(items: Sequence[Item], count: int) -> list[list[Item]]:
    """Consecutive shares of the items, sizes differing by one at most; never an empty one."""
    count = min(count, len(items))
    bounds = [len(items) * i // count for i in range(count + 1)] if count else []
    return [list(items[start:end]) for start, end in pairwise(bounds)]


def share_rows(rows: Sequence[list[Block]], ranks: int) -> list[list[list[Block]]]:
    """Rows of each rank, as many for one as for another (filled up with empty rows): longest row first, to the rank
    with the fewest tokens among those with the fewest rows."""
    shares: list[list[list[Block]]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for row in sorted(rows, key=lambda r: -sum(block.tokens for block in r)):
        rank = min(range(ranks), key=lambda r: (len(shares[r]), load[r], r))
        shares[rank].append(row)
        load[rank] += sum(block.tokens for block in row)
    longest = max(map(len, shares))
    return [share + [[] for _ in range(longest - len(share))] for share in shares]
