"""Packing: lays sequences end to end in one row, without padding, and computes each group's prompt once.

A sequence attends to its prompt and to itself. So the prompt is computed once for all its sequences, and their
gradients into it add up. The result equals one sequence each, with `(n - 1) * len(prompt)` fewer tokens. The last token
of a sequence predicts nothing in training and is left out of the input.

    row        p0 p1 p2 | a0 a1 | b0 b1 b2 g0 g1 b3     sequences are a0..a2 and b0..b4
    position    0  1  2 |  3  4 |  3  4  5  6  7  8
    predicts         a0,b0 a1 a2   b1 b2       b3 b4    g0 and g1 are given: nothing predicts them

A response of one span is one sequence of sampled tokens. One of several turns has given tokens between its sampled
spans, and one whose history forked has several sequences. Its loss tokens together are the response.

`batch.rows` decides which blocks make a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rljob_api.spec.algorithm import LossAggregation
from rljob_runtime.training.batch.rows import Ints, Row

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """A span of queries and the keys that it attends to.

    Queries `[start, start + length)` attend to keys `[prefix_start, prefix_start + prefix_length)` and, causally, to
    themselves. A prompt is a segment without a prefix.
    """

    start: int
    length: int
    prefix_start: int
    prefix_length: int


@dataclass(frozen=True)
class MicroBatch:
    """The tensors of one row.

    There are `T` input tokens, `U` rows of logits and `N` loss tokens. Several targets may share a row of logits.
    """

    input_ids: Tensor
    """[T] int64"""
    position_ids: Tensor
    """[T] int64"""
    segments: tuple[Segment, ...]
    logit_rows: Tensor
    """[U] positions in the row whose logits are needed"""
    target_rows: Tensor
    """[N] index of the U rows that predicts this target"""
    targets: Tensor
    """[N] int64"""
    behaviour: Tensor
    """[N] float64: the sampler's logprobs"""
    advantages: Tensor
    """[N] float64"""
    weights: Tensor
    """[N] float64: 1, 1 / (loss tokens of the response), or 1 / (a fixed length)"""
    responses: Tensor
    """[N] int64: index of the token's response"""
    sequences: int

    def to(self, device: torch.device, dtype: torch.dtype) -> MicroBatch:
        """Move all tensors to `device`, and the floating-point ones to `dtype`."""
        indices = (
            self.input_ids, self.position_ids, self.logit_rows, self.target_rows, self.targets, self.responses
        )  # fmt: skip
        input_ids, position_ids, logit_rows, target_rows, targets, responses = (index.to(device) for index in indices)
        floats = (self.behaviour, self.advantages, self.weights)
        behaviour, advantages, weights = (value.to(device, dtype) for value in floats)
        return MicroBatch(
            input_ids, position_ids, self.segments, logit_rows, target_rows, targets,
            behaviour, advantages, weights, responses, self.sequences,
        )  # fmt: skip


def pack_row(row: Row, aggregation: LossAggregation, fixed_length: int = 1) -> MicroBatch:
    """Build the tensors of one row.

    `fixed_length` divides the weights of FixedLength.

    An empty row becomes one token without a target: a rank without rows still joins the collectives of a forward and a
    backward pass.
    """
    if not len(row.prompts):
        return _empty_row()
    prompts, responses = row.prompts.astype(np.int64), row.responses.astype(np.int64)
    fed = _place_tokens(row, prompts)
    needed = np.zeros(len(fed.input_ids), dtype=bool)
    needed[fed.predicted_at] = True
    weights = _weights(aggregation, responses, fixed_length)
    return MicroBatch(
        input_ids=torch.from_numpy(fed.input_ids),
        position_ids=torch.from_numpy(fed.positions),
        segments=fed.segments,
        logit_rows=torch.from_numpy(np.flatnonzero(needed)),
        target_rows=torch.from_numpy((needed.cumsum() - 1)[fed.predicted_at]),
        targets=torch.from_numpy(row.token_ids.astype(np.int64)),
        behaviour=torch.from_numpy(row.logprobs.astype(np.float64)),
        advantages=torch.from_numpy(np.repeat(row.advantages, responses)),
        weights=torch.from_numpy(np.repeat(weights, responses)),
        responses=torch.from_numpy(np.repeat(np.arange(len(responses)), responses)),
        sequences=len(responses),
    )


class _RowInput(NamedTuple):
    """The input of a row, and the position that predicts each loss token."""

    input_ids: Places
    positions: Places
    predicted_at: Places
    segments: tuple[Segment, ...]


def _place_tokens(row: Row, prompts: Places) -> _RowInput:
    """Lay prompts and sequences end to end."""
    tokens, is_sampled, lengths = _sequences(row)
    block = np.repeat(np.repeat(np.arange(len(prompts)), row.samples), row.sequences)  # of each sequence
    by_block = np.bincount(block, minlength=len(prompts))  # sequences of each block
    prompt_starts, starts = _segment_starts(prompts, by_block, lengths - 1)
    # Arrays with one entry per token of a sequence, or of a prompt, end to end:
    in_prompt, in_sequence = _ranges(prompts), _ranges(lengths)
    prompt_places = np.repeat(prompt_starts, prompts) + in_prompt
    token_places = np.repeat(starts, lengths) + in_sequence
    last = (prompt_starts + prompts - 1)[block]
    predicted_at = np.where(in_sequence == 0, np.repeat(last, lengths), token_places - 1)
    fed = in_sequence < np.repeat(lengths - 1, lengths)

    input_ids = np.empty(len(in_prompt) + int(fed.sum()), dtype=np.int64)
    input_ids[prompt_places], input_ids[token_places[fed]] = row.prompt_token_ids, tokens[fed]
    positions = np.empty_like(input_ids)
    positions[prompt_places] = in_prompt
    positions[token_places[fed]] = (np.repeat(prompts[block], lengths) + in_sequence)[fed]
    segments = _segments(prompts, by_block, lengths, prompt_starts.tolist(), starts.tolist())
    return _RowInput(input_ids, positions, predicted_at[is_sampled], segments)


def _sequences(row: Row) -> tuple[Ints, npt.NDArray[np.bool_], Places]:
    """Return the tokens of all sequences end to end, whether each is sampled, and the length of each sequence."""
    parts = np.stack([row.given, row.sampled], axis=1)
    is_sampled = np.repeat(np.tile([False, True], len(parts)), parts.ravel())
    tokens = np.empty(len(is_sampled), dtype=np.int32)
    tokens[is_sampled], tokens[~is_sampled] = row.token_ids, row.given_token_ids
    ends = parts.sum(axis=1, dtype=np.int64).cumsum()[_ends(row.spans) - 1]
    return tokens, is_sampled, np.diff(ends, prepend=0)


def _weights(aggregation: LossAggregation, lengths: Places, fixed_length: int) -> npt.NDArray[np.float64]:
    """Return the weight of the tokens of each response."""
    if aggregation is LossAggregation.SEQUENCE_MEAN:
        return 1.0 / lengths
    return np.full(len(lengths), 1.0 / fixed_length if aggregation is LossAggregation.FIXED_LENGTH else 1.0)


def _empty_row() -> MicroBatch:
    none, zero = torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    floats = torch.empty(0, dtype=torch.float64)
    return MicroBatch(zero, zero, (Segment(0, 1, 0, 0),), none, none, none, floats, floats, floats, none, 0)


def _segments(
    prompts: Places, sequences: Places, lengths: Places, prompt_starts: list[int], starts: list[int]
) -> tuple[Segment, ...]:
    """Return the segments in the order of the row.

    A prompt without tokens and a sequence of one token have no input.
    """
    segments: list[Segment] = []
    of_sequences = zip(starts, lengths.tolist(), strict=True)
    for start, prompt, count in zip(prompt_starts, prompts.tolist(), sequences.tolist(), strict=True):
        if prompt:
            segments.append(Segment(start, prompt, start, 0))
        own = (next(of_sequences) for _ in range(count))
        segments += [Segment(place, tokens - 1, start, prompt) for place, tokens in own if tokens > 1]
    return tuple(segments)


def _segment_starts(prompts: Places, sequences: Places, inputs: Places) -> tuple[Places, Places]:
    """Return the row positions where each prompt and each sequence's inputs begin.

    A block's prompt comes first, then its sequences.
    """
    first = np.arange(len(prompts)) + _ends(sequences) - sequences  # its place among all prompts and sequences
    is_sequence = np.ones(len(prompts) + len(inputs), dtype=bool)
    is_sequence[first] = False
    lengths = np.empty(len(is_sequence), dtype=np.int64)
    lengths[~is_sequence], lengths[is_sequence] = prompts, inputs
    starts = _ends(lengths) - lengths
    return starts[~is_sequence], starts[is_sequence]


def _ends(lengths: npt.NDArray[np.signedinteger[Any]]) -> Places:
    """Return the end of each span, laid end to end."""
    ends: Places = lengths.cumsum(dtype=np.int64)
    return ends


def _ranges(lengths: Places) -> Places:
    """Return 0, 1, … below each length, end to end."""
    starts = _ends(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
