"""Rows: plans which rank computes which responses of a step, and packs their tokens into arrays.

A row holds blocks. A block is a prompt and some of its responses, which share one computation of the prompt. A response
is one or more sequences of spans: given tokens, then sampled ones. Only sampled tokens are in the loss. Most responses
are one span. First fit, longest first, places blocks into rows of at most the token budget. A response longer than the
budget gets its own row.
Everything is a pure function of its input, without torch: the coordinator plans the rows and sends each rank its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rljob_runtime.protocols.trajectory import FinishReason, Group, Response
from rljob_runtime.training.algorithm.advantage import ScoredGroup, group_advantages
from rljob_runtime.training.algorithm.overlong import overlong_penalty
from rljob_runtime.training.row_rules import AdvantageRules, RowRules

Item = TypeVar("Item")
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating[Any]]
"""float32 where the coordinator keeps log-probabilities, float64 where they are Python floats."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the sampled tokens of a response of several spans stand: `Q` sequences of `K` spans after the prompt."""

    spans: tuple[int, ...]
    """[Q] spans of each sequence"""
    given: tuple[int, ...]
    """[K] given tokens of each span"""
    sampled: tuple[int, ...]
    """[K] sampled tokens that follow them"""
    given_token_ids: Ints
    """Given tokens of all spans, end to end."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One response to train on: its sampled tokens, the sampler's logprobs of them, and its advantage.

    Without a layout it is one span, directly after the prompt.
    """

    token_ids: Ints
    logprobs: Floats
    advantage: float
    layout: Layout | None = None

    @property
    def inputs(self) -> int:
        """Input tokens in a row, besides the prompt. The last token of a sequence predicts nothing and is left out."""
        if self.layout is None:
            return len(self.token_ids) - 1
        return len(self.token_ids) + len(self.layout.given_token_ids) - len(self.layout.spans)


@dataclass(frozen=True, eq=False)
class Block:
    """A prompt and some of its responses, which share one computation of the prompt."""

    prompt_token_ids: Ints
    samples: tuple[Sample, ...]

    @property
    def tokens(self) -> int:
        """Input tokens of the block in a row."""
        return len(self.prompt_token_ids) + sum(sample.inputs for sample in self.samples)


def block_of(group: Group, rules: AdvantageRules, given: Sequence[float] | None = None) -> Block:
    """Convert a group into a block with advantages.

    The block has the responses that enter the loss, perhaps none. `given` holds the advantages that the user's function
    computed. Raises `ValueError` for a group that cannot be
    trained on.
    """
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
        layout = layout_of(response, len(group.prompt_token_ids))
        if not (rules.mask_overlong and response.finish_reason is FinishReason.LENGTH):
            samples.append(Sample(np.asarray(response.token_ids, dtype=np.int32), logprobs, advantage, layout))
    return Block(np.asarray(group.prompt_token_ids, dtype=np.int32), tuple(samples))


def layout_of(response: Response, prompt_tokens: int) -> Layout | None:
    """Return where a response's tokens stand; None for one span after the prompt.

    Raises `ValueError` if that is not where tokens can be sampled.
    """
    if not response.sequences:
        if not prompt_tokens:
            raise ValueError(f"prompt {response.key.prompt} has no tokens")
        return None
    spans = [span for sequence in response.sequences for span in sequence]
    if not all(response.sequences) or any(span.sampled < 1 for span in spans):
        raise ValueError(f"response {response.key} has a sequence or a span without sampled tokens")
    if (placed := sum(span.sampled for span in spans)) != len(response.token_ids):
        raise ValueError(f"response {response.key} has {len(response.token_ids)} tokens; its spans have {placed}")
    if not prompt_tokens and not all(len(sequence[0].given) for sequence in response.sequences):
        raise ValueError(f"prompt {response.key.prompt} has no tokens, and a sequence begins with a sampled token")
    return Layout(
        spans=tuple(len(sequence) for sequence in response.sequences),
        given=tuple(len(span.given) for span in spans),
        sampled=tuple(span.sampled for span in spans),
        given_token_ids=_joined([np.asarray(span.given, dtype=np.int32) for span in spans], np.int32),
    )


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
    for sample in sorted(block.samples, key=lambda s: -s.inputs):
        if taken and sample.inputs > free:
            pieces.append(Block(block.prompt_token_ids, tuple(taken)))
            taken, free = [], room_for_responses
        taken.append(sample)
        free -= sample.inputs
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
    """Blocks end to end: `B` blocks, `S` responses in the order of their blocks, `Q` sequences, `K` spans."""

    prompts: Ints
    """[B] tokens of each prompt"""
    samples: Ints
    """[B] responses of each block"""
    responses: Ints
    """[S] sampled tokens of each response"""
    advantages: npt.NDArray[np.float64]
    """[S]"""
    sequences: Ints
    """[S] sequences of each response"""
    spans: Ints
    """[Q] spans of each sequence"""
    given: Ints
    """[K] given tokens of each span"""
    sampled: Ints
    """[K] sampled tokens that follow them"""
    prompt_token_ids: Ints
    """Tokens of all prompts, end to end."""
    given_token_ids: Ints
    """Given tokens of all spans, end to end."""
    token_ids: Ints
    """Sampled tokens of all spans, end to end: those in the loss."""
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
        prompt_ends, sample_ends = _bounds(joined.prompts), _bounds(joined.samples)
        sequence_ends, span_ends = _bounds(joined.sequences), _bounds(joined.spans)
        given_ends, token_ends = _bounds(joined.given), _bounds(joined.sampled)
        for first, last in pairwise(block_ends):
            prompts = slice(prompt_ends[first], prompt_ends[last])
            samples = slice(sample_ends[first], sample_ends[last])
            sequences = slice(sequence_ends[samples.start], sequence_ends[samples.stop])
            spans = slice(span_ends[sequences.start], span_ends[sequences.stop])
            tokens = slice(token_ends[spans.start], token_ends[spans.stop])
            yield Row(
                prompts=joined.prompts[first:last],
                samples=joined.samples[first:last],
                responses=joined.responses[samples],
                advantages=joined.advantages[samples],
                sequences=joined.sequences[samples],
                spans=joined.spans[sequences],
                given=joined.given[spans],
                sampled=joined.sampled[spans],
                prompt_token_ids=joined.prompt_token_ids[prompts],
                given_token_ids=joined.given_token_ids[given_ends[spans.start] : given_ends[spans.stop]],
                token_ids=joined.token_ids[tokens],
                logprobs=joined.logprobs[tokens],
            )


def _bounds(lengths: Ints) -> npt.NDArray[np.int64]:
    """Return 0, then the end of each span, laid end to end."""
    return np.concatenate([[0], lengths.cumsum(dtype=np.int64)])


def row_of(blocks: Sequence[Block]) -> Row:
    """Copy blocks end to end into new arrays."""
    samples = [sample for block in blocks for sample in block.samples]
    sequences: list[int] = []
    spans: list[int] = []
    given: list[int] = []
    sampled: list[int] = []
    for sample in samples:
        layout = sample.layout or Layout((1,), (0,), (len(sample.token_ids),), _NO_TOKENS)
        sequences.append(len(layout.spans))
        spans += layout.spans
        given += layout.given
        sampled += layout.sampled
    return Row(
        prompts=_counts(len(block.prompt_token_ids) for block in blocks),
        samples=_counts(len(block.samples) for block in blocks),
        responses=_counts(len(sample.token_ids) for sample in samples),
        advantages=np.array([sample.advantage for sample in samples], dtype=np.float64),
        sequences=_counts(sequences),
        spans=_counts(spans),
        given=_counts(given),
        sampled=_counts(sampled),
        prompt_token_ids=_joined([block.prompt_token_ids for block in blocks], np.int32),
        given_token_ids=_joined([sample.layout.given_token_ids for sample in samples if sample.layout], np.int32),
        token_ids=_joined([sample.token_ids for sample in samples], np.int32),
        logprobs=_joined([sample.logprobs for sample in samples]),
    )


_NO_TOKENS: Ints = np.empty(0, dtype=np.int32)


def _counts(numbers: Iterable[int]) -> Ints:
    return np.array([*numbers], dtype=np.int32)


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
