"""Packing: lays responses end to end in one row, without padding, and computes each group's prompt once.

A response attends to its prompt and to itself. So the prompt is computed once for all its responses, and their
gradients into it add up. The result equals one sequence each, with `(n - 1) * len(prompt)` fewer tokens. The last token
of a response predicts nothing in training and is left out of the input.

    row        p0 p1 p2 | a0 a1 | b0 b1 b2        responses are a0..a2 and b0..b3
    position    0  1  2 |  3  4 |  3  4  5
    predicts         a0,b0 a1 a2   b1 b2 b3

`batch.rows` decides which blocks make a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rljob_api.spec_algorithm import LossAggregation
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
    """[N] float64: 1, 1 / (length of the response), or 1 / (a fixed length)"""
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
    prompt_starts, response_starts = _segment_starts(prompts, row.samples, responses - 1)
    block = np.repeat(np.arange(len(prompts)), row.samples)  # of each response
    # Arrays with one entry per token of a response, or of a prompt, end to end:
    in_prompt, in_response = _ranges(prompts), _ranges(responses)
    prompt_places = np.repeat(prompt_starts, prompts) + in_prompt
    response_places = np.repeat(response_starts, responses) + in_response
    last = (prompt_starts + prompts - 1)[block]
    predicted_at = np.where(in_response == 0, np.repeat(last, responses), response_places - 1)
    fed = in_response < np.repeat(responses - 1, responses)

    input_ids = np.empty(len(in_prompt) + int(fed.sum()), dtype=np.int64)
    input_ids[prompt_places], input_ids[response_places[fed]] = row.prompt_token_ids, row.token_ids[fed]
    positions = np.empty_like(input_ids)
    positions[prompt_places] = in_prompt
    positions[response_places[fed]] = (np.repeat(prompts[block], responses) + in_response)[fed]
    needed = np.zeros(len(input_ids), dtype=bool)
    needed[predicted_at] = True
    weights = _weights(aggregation, responses, fixed_length)
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(positions),
        segments=_segments(row, prompt_starts.tolist(), response_starts.tolist()),
        logit_rows=torch.from_numpy(np.flatnonzero(needed)),
        target_rows=torch.from_numpy((needed.cumsum() - 1)[predicted_at]),
        targets=torch.from_numpy(row.token_ids.astype(np.int64)),
        behaviour=torch.from_numpy(row.logprobs.astype(np.float64)),
        advantages=torch.from_numpy(np.repeat(row.advantages, responses)),
        weights=torch.from_numpy(np.repeat(weights, responses)),
        responses=torch.from_numpy(np.repeat(np.arange(len(responses)), responses)),
        sequences=len(responses),
    )


def _weights(aggregation: LossAggregation, lengths: Places, fixed_length: int) -> npt.NDArray[np.float64]:
    """Return the weight of the tokens of each response."""
    if aggregation is LossAggregation.SEQUENCE_MEAN:
        return 1.0 / lengths
    return np.full(len(lengths), 1.0 / fixed_length if aggregation is LossAggregation.FIXED_LENGTH else 1.0)


def _empty_row() -> MicroBatch:
    none, zero = torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    floats = torch.empty(0, dtype=torch.float64)
    return MicroBatch(zero, zero, (Segment(0, 1, 0, 0),), none, none, none, floats, floats, floats, none, 0)


def _segments(row: Row, prompt_starts: list[int], response_starts: list[int]) -> tuple[Segment, ...]:
    """Return the segments in the order of the row.

    A response of one token has no input.
    """
    segments: list[Segment] = []
    responses = zip(response_starts, row.responses.tolist(), strict=True)
    for prompt, length, samples in zip(prompt_starts, row.prompts.tolist(), row.samples.tolist(), strict=True):
        segments.append(Segment(prompt, length, prompt, 0))
        own = (next(responses) for _ in range(samples))
        segments += [Segment(start, tokens - 1, prompt, length) for start, tokens in own if tokens > 1]
    return tuple(segments)


def _segment_starts(prompts: Places, samples: Ints, inputs: Places) -> tuple[Places, Places]:
    """Return the row positions where each prompt and each response's inputs begin.

    A block's prompt comes first, then its responses.
    """
    first = np.arange(len(prompts)) + _ends(samples) - samples  # its place among all prompts and responses
    is_response = np.ones(len(prompts) + len(inputs), dtype=bool)
    is_response[first] = False
    lengths = np.empty(len(is_response), dtype=np.int64)
    lengths[~is_response], lengths[is_response] = prompts, inputs
    starts = _ends(lengths) - lengths
    return starts[~is_response], starts[is_response]


def _ends(lengths: npt.NDArray[np.signedinteger[Any]]) -> Places:
    """Return the end of each span, laid end to end."""
    ends: Places = lengths.cumsum(dtype=np.int64)
    return ends


def _ranges(lengths: Places) -> Places:
    """Return 0, 1, … below each length, end to end."""
    starts = _ends(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
