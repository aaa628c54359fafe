"""Packing and advantages: nothing lost, nothing twice, no row above its budget, equal work for all ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.algorithm import LossAggregation
from rljob_runtime.training.algorithm.advantage import group_advantages
from rljob_runtime.training.batch.rows import Block, Layout, Sample, minibatches, plan_rows, row_of, share_rows
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.packing import MicroBatch, pack_row

tokens = st.integers(0, 99)


@st.composite
def blocks(draw: st.DrawFn) -> list[Block]:
    made = []
    for _ in range(draw(st.integers(1, 6))):
        prompt = tuple(draw(st.lists(tokens, min_size=1, max_size=8)))
        layouts = draw(st.lists(st.integers(1, 12) | several_spans(), min_size=1, max_size=5))
        samples = []
        for k, layout in enumerate(layouts):
            n, places = (layout, None) if isinstance(layout, int) else (sum(layout.sampled), layout)
            samples.append(
                Sample(tuple(range(n)), tuple(-float(i) for i in range(n)), float(len(made) * 10 + k), places)
            )
        made.append(Block(prompt, tuple(samples)))
    return made


@st.composite
def several_spans(draw: st.DrawFn) -> Layout:
    spans = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    count = sum(spans)
    given = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    sampled = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    return Layout(spans, tuple(given), tuple(sampled), np.arange(100, 100 + sum(given), dtype=np.int32))


@given(blocks(), st.integers(1, 60), st.integers(1, 4))
def test_rows_hold_every_response_once_within_the_budget(made: list[Block], budget: int, ranks: int) -> None:
    rows = plan_rows(made, budget)
    for row in rows:
        alone = len(row) == 1 and len(row[0].samples) == 1
        assert alone or sum(block.tokens for block in row) <= budget
    placed = sorted((b.prompt_token_ids, s.advantage) for row in rows for b in row for s in b.samples)
    assert placed == sorted((b.prompt_token_ids, s.advantage) for b in made for s in b.samples)
    shares = share_rows(rows, ranks)
    assert len({len(share) for share in shares}) == 1
    assert sum(len(row) > 0 for share in shares for row in share) == len(rows)


@given(blocks())
def test_a_row_predicts_each_token_from_the_one_before_it(made: list[Block]) -> None:
    batch = pack_row(row_of(made), LossAggregation.SEQUENCE_MEAN)
    assert len(batch.input_ids) == sum(block.tokens for block in made)  # no padding, prompts once
    covered = [i for s in batch.segments for i in range(s.start, s.start + s.length)]
    assert covered == list(range(len(batch.input_ids)))
    at = number = 0
    for block in made:
        for sample in block.samples:
            for before, token in loss_tokens(block, sample):
                row = int(batch.logit_rows[batch.target_rows[at]])
                assert seen_by(batch, row) == before
                assert int(batch.position_ids[row]) == len(before) - 1
                assert int(batch.targets[at]) == token
                assert float(batch.advantages[at]) == sample.advantage
                assert int(batch.responses[at]) == number
                at += 1
            number += 1
    assert at == len(batch.targets)
    assert math.isclose(float(batch.weights.sum()), batch.sequences)


def loss_tokens(block: Block, sample: Sample) -> list[tuple[list[int], int]]:
    """Return each loss token with all tokens before it in its sequence."""
    layout = sample.layout or Layout((1,), (0,), (len(sample.token_ids),), np.empty(0, np.int32))
    given, tokens = iter(layout.given_token_ids), iter(sample.token_ids)
    spans = iter(zip(layout.given, layout.sampled, strict=True))
    found = []
    for count in layout.spans:
        before = list(block.prompt_token_ids)
        for given_tokens, sampled in (next(spans) for _ in range(count)):
            before += [next(given) for _ in range(given_tokens)]
            for token in (next(tokens) for _ in range(sampled)):
                found.append((list(before), token))
                before.append(token)
    return found


def seen_by(batch: MicroBatch, row: int) -> list[int]:
    """Return the input tokens that a position attends to, itself included."""
    one = next(one for one in batch.segments if one.start <= row < one.start + one.length)
    prefix = batch.input_ids[one.prefix_start : one.prefix_start + one.prefix_length]
    return [*prefix.tolist(), *batch.input_ids[one.start : row + 1].tolist()]


def test_a_block_without_a_prompt_has_its_sequences_only() -> None:
    layout = Layout((1, 2), (2, 1, 0), (1, 1, 2), np.array((50, 51, 60), np.int32))
    block = Block(np.empty(0, np.int32), (Sample((1, 2, 3, 4), (-1.0,) * 4, 1.0, layout),))
    batch = pack_row(row_of((block,)), LossAggregation.TOKEN_MEAN)
    assert batch.input_ids.tolist() == [50, 51, 60, 2, 3]
    assert batch.logit_rows[batch.target_rows].tolist() == [1, 2, 3, 4]
    assert [(one.start, one.length, one.prefix_length) for one in batch.segments] == [(0, 2, 0), (2, 3, 0)]


@given(st.lists(st.integers(), max_size=20), st.integers(1, 8))
def test_minibatches_are_an_even_split(items: list[int], count: int) -> None:
    shares = minibatches(items, count)
    assert [item for share in shares for item in share] == items
    assert all(shares)
    assert not shares or max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=16), st.booleans())
def test_advantages_are_centred_and_in_the_order_of_rewards(rewards: list[float], by_std: bool) -> None:
    found = group_advantages(rewards, by_std=by_std)
    assert math.isclose(math.fsum(found), 0, abs_tol=1e-6 * (1 + max(map(abs, rewards))))
    for (a, x), (b, y) in zip(zip(rewards, found, strict=True), zip(rewards[1:], found[1:], strict=True), strict=False):
        assert (a <= b) == (x <= y) or math.isclose(x, y, abs_tol=1e-9)
    if by_std:
        assert max(map(abs, found)) <= math.sqrt(len(rewards))


@given(st.lists(st.integers(-8, 8).map(float), min_size=2, max_size=8), st.sampled_from([1e200, 1e307]))
def test_advantages_do_not_depend_on_the_scale_of_rewards(rewards: list[float], factor: float) -> None:
    large = [reward * factor for reward in rewards]
    assert group_advantages(large) == pytest.approx(group_advantages(rewards), abs=1e-5)
    assert all(map(math.isfinite, group_advantages(large, by_std=False)))


@pytest.mark.parametrize(
    ("rewards", "wanted"),
    [([0.3] * 3, [0.0] * 3), ([5.0], [0.0]), ([0.1 + 0.2, 0.3, 0.3], None), ([1.0, 0.0], [1.0, -1.0])],
)
def test_advantages_of_groups_that_teach_nothing(rewards: list[float], wanted: list[float] | None) -> None:
    found = group_advantages(rewards)
    if wanted is None:  # equal but for rounding: no more than rounding is learned
        assert max(map(abs, found)) < 1e-9
    else:
        assert found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("rewards", [[], [1.0, math.nan], [math.inf]])
def test_advantages_refuse_what_is_no_reward(rewards: list[float]) -> None:
    with pytest.raises(ValueError, match=r"at least one reward|a reward is a finite number"):
        group_advantages(rewards)


BAD_SETTINGS = {
    "dtype": "int8", "temperature": 0.0, "learning_rate": -1.0, "adam_epsilon": 0.0, "warmup_steps": -1,
    "weight_decay": -0.1, "clip_low": -0.1, "clip_high": float("nan"), "kl_coefficient": -1.0, "minibatches": 0,
    "max_tokens_per_microbatch": 0, "max_grad_norm": 0.0, "importance_cap": 0.99,
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD_SETTINGS.items())
def test_settings_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is .*must be"):
        TrainingConfig(**{field: value})
