"""Outbox, tracker, block pool and sampling on their own, under arbitrary orders of events."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from rljob_runtime.protocols import Delta, EngineStats, GenerateRequest, ReplicaReport
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, Sampling, TrajectoryKey
from rljob_runtime.rollout.attempts import AttemptTracker, engine_id
from rljob_runtime.rollout.engines.base import EngineRequest, StepOutput, seed_of
from rljob_runtime.rollout.engines.reference.kv_blocks import BlockPool
from rljob_runtime.rollout.engines.reference.sampling import kept_tokens, sample, uniforms
from rljob_runtime.rollout.outbox import Outbox

KEYS = [TrajectoryKey(PromptKey(0, i), 0) for i in range(3)]


STATS = EngineStats(1, 0, 0.5, 0, 3, 9, 1, 1)


def put(outbox: Outbox, *deltas: Delta) -> None:
    outbox.put(list(deltas), STATS, 7)


def delta(key: int, offset: int, attempt: int = 1, end: bool = False) -> Delta:
    return Delta(KEYS[key], attempt, offset, (offset,), (-float(offset),), 7, FinishReason.STOP if end else None)


# --- outbox ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.sampled_from(range(3)), st.sampled_from(["poll", "lost reply"])), max_size=60))
def test_every_token_arrives_once_and_in_order_whatever_replies_are_lost(events: list[int | str]) -> None:
    outbox, made = Outbox("boot"), [0, 0, 0]
    cursor, received = 0, [[], [], []]  # type: ignore[var-annotated]
    for event in [*events, "poll"]:
        if isinstance(event, int):
            put(outbox, delta(event, made[event]))
            made[event] += 1
            continue
        report = outbox.take(cursor)
        if event == "poll":
            cursor = report.cursor
            for d in report.deltas:
                received[KEYS.index(d.key)] += d.token_ids
    assert received == [list(range(n)) for n in made]
    assert outbox.take(cursor).deltas == ()


def test_unseen_tokens_of_an_attempt_travel_together() -> None:
    outbox = Outbox("boot")
    put(outbox, delta(0, 0), delta(1, 0))
    put(outbox, delta(0, 1, end=True))
    joined = Delta(KEYS[0], 1, 0, (0, 1), (0.0, -1.0), 7, FinishReason.STOP)
    assert outbox.take(0) == ReplicaReport("boot", 2, (joined, delta(1, 0)), 7, STATS)


def test_what_an_engine_held_of_a_request_travels_with_its_tokens() -> None:
    tracker, outbox = AttemptTracker(), Outbox("boot")
    tracker.admit([request(0, 1)])
    for held in (None, 32):
        made = tracker.deltas([StepOutput(engine_id(KEYS[0], 1), (8,), (0.0,), cached_tokens=held)], 7)
        outbox.put(made, STATS, 7)
    (joined,) = outbox.take(0).deltas
    assert (joined.token_ids, joined.cached_tokens) == ((8, 8), 32)


def test_attempts_are_never_mixed() -> None:
    outbox = Outbox("boot")
    put(outbox, delta(0, 0), delta(0, 0, attempt=2))
    assert [d.attempt for d in outbox.take(0).deltas] == [1, 2]


def test_a_cursor_of_another_boot_acknowledges_nothing() -> None:
    outbox = Outbox("boot")
    put(outbox, delta(0, 0))
    outbox.take(0)
    assert len(outbox.take(99).deltas) == 1


def test_ready_means_that_something_new_can_be_taken() -> None:
    outbox = Outbox("boot")
    waiting = outbox.ready(0)
    assert not waiting.done()
    put(outbox)
    assert not waiting.done()
    put(outbox, delta(0, 0))
    assert waiting.done()
    cursor = outbox.take(0).cursor
    assert outbox.ready(0).done(), "an unacknowledged delta is there to be taken again"
    assert not outbox.ready(cursor).done()
    last = outbox.ready(cursor)
    outbox.wake()
    assert last.done()


# --- attempts ---------------------------------------------------------------------------------------------------------


def request(key: int, attempt: int, prefix: int = 0) -> GenerateRequest:
    return GenerateRequest(KEYS[key], attempt, (1,), Sampling(8), 7, tuple(range(prefix)))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.integers(0, 2), st.integers(1, 4)),
            st.tuples(st.just("abort"), st.integers(0, 2), st.integers(1, 4)),
            st.tuples(st.just("finish"), st.integers(0, 2), st.just(0)),
        ),
        max_size=40,
    )
)
def test_an_attempt_starts_at_most_once_and_only_upwards(events: list[tuple[str, int, int]]) -> None:
    tracker, started = AttemptTracker(), {key: [0] for key in range(3)}
    running: set[str] = set()
    for event, key, attempt in events:
        if event == "submit":
            admission = tracker.admit([request(key, attempt)])
            running -= set(admission.replaced)
            for r in admission.started:
                started[key].append(r.attempt)
                running.add(engine_id(r.key, r.attempt))
        elif event == "abort":
            stopped = set(tracker.abort({KEYS[key]: attempt}))
            assert stopped == {
                name for name in running if name in {engine_id(KEYS[key], a) for a in range(attempt + 1)}
            }
            running -= stopped
        else:
            name = engine_id(KEYS[key], started[key][-1])
            ended = tracker.deltas([StepOutput(name, (5,), (0.0,), FinishReason.STOP)], 7)
            assert [d.attempt for d in ended] == ([started[key][-1]] if name in running else [])
            running.discard(name)
        assert len(tracker) == len(running)
        assert len(running) == len({name.split("#")[0] for name in running}), "two attempts of one trajectory run"
    assert all(attempts == sorted(set(attempts)) for attempts in started.values())


def test_offsets_continue_the_prefix() -> None:
    tracker = AttemptTracker()
    tracker.admit([request(0, 1, prefix=5)])
    outputs = [StepOutput(engine_id(KEYS[0], 1), (8, 9), (0.0, 0.0)), StepOutput(engine_id(KEYS[0], 1), (7,), (0.0,))]
    assert [d.offset for d in tracker.deltas(outputs, 7)] == [5, 7]


def test_outputs_of_what_is_not_held_are_dropped() -> None:
    tracker = AttemptTracker()
    tracker.admit([request(0, 1)])
    tracker.abort({KEYS[0]: 1})
    assert tracker.deltas([StepOutput(engine_id(KEYS[0], 1), (8,), (0.0,))], 7) == []


def test_new_weights_begin_a_new_ledger_but_not_over_held_requests() -> None:
    tracker = AttemptTracker()
    tracker.admit([request(0, 1)])
    with pytest.raises(RuntimeError, match="1 requests are active"):
        tracker.forget()
    tracker.abort({KEYS[0]: 1})
    tracker.forget()
    assert tracker.admit([request(0, 1)]).started == (request(0, 1),)


# --- KV blocks -------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans()), max_size=40),
)
def test_no_block_has_two_owners_and_none_is_lost(total: int, size: int, events: list[tuple[int, int, bool]]) -> None:
    pool, tables = BlockPool(total, size), [[], [], [], []]  # type: ignore[var-annotated]
    for owner, tokens, release in events:
        if release:
            pool.release(tables[owner])
            continue
        before = [list(t) for t in tables]
        if pool.grow(tables[owner], tokens):
            assert len(tables[owner]) * size >= tokens
        else:
            assert tables == before
        taken = [block for table in tables for block in table]
        assert len(taken) == len(set(taken))
        assert set(taken) <= set(range(total))
        assert pool.used_share == pytest.approx(len(taken) / total)


@pytest.mark.parametrize(("total", "size"), [(0, 4), (4, 0)])
def test_an_empty_cache_is_refused(total: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least one block of one token"):
        BlockPool(total, size)


# --- sampling --------------------------------------------------------------------------------------------------------


def test_uniforms_are_uniform_and_independent_of_their_neighbours() -> None:
    by_seed = uniforms(range(20_000), [0] * 20_000)
    by_position = uniforms([5] * 20_000, range(20_000))
    for drawn in (by_seed, by_position):
        assert 0 <= drawn.min() < drawn.max() < 1
        assert abs(drawn.mean() - 0.5) < 0.01
        assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.03
    assert len(set(by_seed) | set(by_position)) == 40_000 - 1  # (seed 5, position 0) is in both.


def drawing(temperature: float, **changes: float) -> EngineRequest:
    return EngineRequest("a", (1,), 1, temperature=temperature, **changes)  # type: ignore[arg-type]


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_a_draw_depends_on_its_seed_and_position_only(seed: int, position: int) -> None:
    logits = torch.linspace(-3, 3, 40).repeat(3, 1)
    tokens, logprobs = sample(logits, [drawing(1.0), drawing(0.0), drawing(0.5)], [1, 2, seed], [9, 9, position])
    alone = sample(logits[:1], [drawing(0.5)], [seed], [position])
    assert ([tokens[2]], [logprobs[2]]) == alone


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((500, 64), -torch.inf)
    logits[:, 17] = 0.0
    tokens, logprobs = sample(logits, [drawing(1.0)] * 500, list(range(500)), [0] * 500)
    assert set(tokens) == {17}
    assert set(logprobs) == {0.0}


KEPT = (
    ({}, [0, 1, 2, 3]),
    ({"top_k": 2}, [1, 3]),
    ({"top_k": 9}, [0, 1, 2, 3]),
    ({"top_p": 0.4}, [1]),
    ({"top_p": 0.41}, [1, 3]),
    ({"top_p": 1e-9}, [1]),
    ({"min_p": 0.5}, [1, 3, 2]),
    ({"min_p": 0.51}, [1, 3]),
    ({"min_p": 1.0}, [1]),
    # Of what min p and top k leave, 0.4 and 0.3, the first has 4/7.
    ({"top_k": 2, "top_p": 0.57}, [1]),
    ({"top_k": 2, "top_p": 0.58}, [1, 3]),
    ({"min_p": 0.6, "top_p": 0.57}, [1]),
)


@pytest.mark.parametrize(("choice", "left"), KEPT, ids=str)
def test_top_k_top_p_and_min_p_leave_the_most_probable_tokens(choice: dict[str, float], left: list[int]) -> None:
    settings = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | choice
    kept = kept_tokens(torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64), **settings)  # type: ignore[arg-type]
    assert kept.nonzero().flatten().tolist() == sorted(left)


@given(
    st.lists(st.floats(-20, 20), min_size=1, max_size=30),
    st.integers(0, 40),
    st.floats(0.01, 1),
    st.floats(0, 1),
    st.integers(0, 2**40),
)
def test_a_draw_is_a_token_that_is_left_with_its_probability_among_all(
    logits: list[float], top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    asked = drawing(0.7, top_k=top_k, top_p=top_p, min_p=min_p)
    (token,), (logprob,) = sample(torch.tensor([logits]), [asked], [seed], [0])
    everything = (torch.tensor(logits) / 0.7).log_softmax(-1)
    probabilities = everything.double().exp()
    above = probabilities > probabilities[token]
    assert logprob == pytest.approx(float(everything[token]), abs=1e-5)
    assert probabilities[token] >= min_p * probabilities.max() * (1 - 1e-6)
    assert not top_k or int(above.sum()) < top_k
    assert float(probabilities[above].sum()) <= top_p + 1e-6


def test_seeds_fit_the_engines_and_their_absence_is_random() -> None:
    assert seed_of(EngineRequest("a", (1,), 1, seed=2**64 - 1)) == 2**63 - 1
    assert seed_of(EngineRequest("a", (1,), 1)) != seed_of(EngineRequest("a", (1,), 1))
