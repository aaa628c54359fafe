"""The event model against the stepwise engine, and what its callers rely on."""

import heapq
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.perf_model.engine_records import Finish, Request
from rljob_runtime.perf_model.engine_simulator import EngineSimulator
from rljob_runtime.perf_model.hardware import H800
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import QWEN2_5_32B
from rljob_runtime.perf_model.roofline import memory, roofline
from tests.support.examples import examples
from tests.support.processor_time import growth
from tests.support.stepwise_engine import StepwiseEngine

LATENCY = LatencyModel(((1.0, 1.0), (3.0, 1.5)), 0.0, 2.0, 0.0, 0.0)
"""Steps of 1, 1.25, 1.5 seconds for one, two, three sequences; any prefill pass 2 seconds."""


def latency_of(base, growth, context):
    return LatencyModel(((1.0, base), (9.0, base * (1 + growth))), context, base / 3, base / 50, base / 1e5)


# Ends of steps are multiples of e, operations come at multiples of pi: a tie would be decided by rounding.
latencies = st.builds(
    latency_of,
    st.integers(1, 1000).map(lambda n: n * math.e / 1000),
    st.floats(0, 3),
    st.sampled_from([0.0, 1e-4, 0.01]),
)


@st.composite
def scripts(draw):
    """(capacity, max_sequences, watermark, operations by time). Caches are tight: most scripts preempt."""
    capacity = draw(st.integers(40, 160))
    operations = []
    priorities = draw(st.sampled_from([[0], [-2, -1, 0, 0]]))
    for one in range(draw(st.integers(1, 14))):
        prompt = draw(st.integers(1, capacity // 4))
        response = draw(st.integers(1, capacity - prompt))
        generated = draw(st.sampled_from([0, 0, response // 2]))
        cached = draw(st.sampled_from([0, 0, prompt, prompt + generated]))
        at = draw(st.integers(0, 60)) * math.pi / 3 if draw(st.booleans()) else 0.0
        operations.append(
            (at, "submit", Request(one, prompt, response, generated, cached, draw(st.sampled_from(priorities))))
        )
        if draw(st.integers(0, 3)) == 0:
            operations.append((at + draw(st.integers(1, 100)) * math.pi / 7, "abort", one))
    operations.sort(key=lambda operation: operation[0])
    return capacity, draw(st.integers(1, 12)), draw(st.sampled_from([0.0, 0.02, 0.2])), operations


def play(latency, script, looks=(), budget=None):
    """The event model through a script, looked at in between: (finishes, tokens of the aborted, load at the end)."""
    capacity, most, watermark, operations = script
    engine = EngineSimulator(latency, capacity, most, watermark, prefill_budget=budget)
    finishes, aborted = [], {}
    for at in sorted({operation[0] for operation in operations} | set(looks)):
        if at in looks:
            finishes += engine.advance(at)
            assert engine.load(at).kv_tokens <= capacity
            assert all(made >= 0 for made in engine.progress(at).values())
        now = [(kind, what) for moment, kind, what in operations if moment == at]
        engine.submit(at, [what for kind, what in now if kind == "submit"])
        aborted |= {
            one.id: one.generated_tokens for one in engine.abort(at, [what for kind, what in now if kind == "abort"])
        }
    finishes += engine.drain()
    return finishes, aborted, engine.load(1e9)


@given(latencies, scripts(), st.sampled_from([None, None, 1, 20, 60]))
@settings(max_examples=examples(200))
def test_the_event_model_is_the_stepwise_engine(latency, script, budget):
    capacity, most, watermark, operations = script
    naive = StepwiseEngine(latency, capacity, most, watermark, list(operations), budget).run()
    finishes, aborted, load = play(latency, script, budget=budget)
    assert {one.id: pytest.approx(one.time, rel=1e-6) for one in finishes} == naive.finishes
    assert [one.time for one in finishes] == sorted(one.time for one in finishes)
    assert load.preemptions == naive.preemptions
    assert load.prefill_tokens == naive.prefilled
    assert load.generated_tokens == naive.generated
    assert load.busy_seconds == pytest.approx(naive.busy, rel=1e-6)
    assert load.running == load.waiting == load.kv_tokens == 0
    # Who aborts learns what there was at that time; the step under way may still have made one more.
    assert aborted.keys() == naive.aborted.keys()
    assert all(naive.aborted[one] - made in (0, 1) for one, made in aborted.items())


@given(latencies, scripts(), st.sets(st.integers(0, 300).map(lambda n: n * math.sqrt(2) / 5), max_size=8))
@settings(max_examples=examples(100))
def test_looking_changes_nothing(latency, script, looks):
    *unseen, load = play(latency, script)
    *seen, looked = play(latency, script, looks)
    assert seen == unseen
    assert looked == load


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 60)), min_size=2, max_size=10), st.integers(1, 40))
def test_moving_loses_and_repeats_no_token(lengths, after):
    """All of one engine move to another in the middle: together they make each token once."""
    source, destination = EngineSimulator(LATENCY, 200), EngineSimulator(LATENCY, 10_000)
    source.submit(0.0, [Request(one, *length) for one, length in enumerate(lengths)])
    at = after * math.pi
    done = [one.id for one in source.advance(at)]
    moved = source.abort(at, range(len(lengths)))
    destination.submit(at, moved)
    done += [one.id for one in destination.drain()]
    assert sorted(done) == list(range(len(lengths)))
    assert source.drain() == []
    missing = sum(one.response_tokens - one.generated_tokens for one in moved)
    assert destination.load(1e9).generated_tokens == missing
    assert destination.load(1e9).prefill_tokens == sum(one.context_tokens for one in moved)
    # What the step under way made for those that left is thrown away, and counted where it was made.
    thrown_away = source.load(1e9).generated_tokens - (sum(response for _, response in lengths) - missing)
    assert 0 <= thrown_away <= len(moved)


# --- by hand ---


def test_a_prefill_pass_and_steps():
    engine = EngineSimulator(LATENCY, 100)
    engine.submit(10.0, [Request("a", 5, 2), Request("b", 5, 4)])
    assert engine.next_event == 12.0
    assert engine.drain() == [Finish("a", 12 + 2 * 1.25), Finish("b", 14.5 + 2 * 1.0)]
    assert engine.next_event == math.inf


def test_a_budget_of_prefill_gives_first_tokens_one_after_the_other():
    engine = EngineSimulator(LATENCY, 100, prefill_budget=10)
    engine.submit(0.0, [Request(one, 5, 9) for one in "abc"] + [Request("long", 20, 9)])
    # Passes end at 2 (a and b), 5.25 (c) and 8.75 (long); a step follows each.
    assert engine.progress(3.25) == {"a": 1, "b": 1, "c": 0, "long": 0}
    assert engine.progress(6.75) == {"a": 2, "b": 2, "c": 1, "long": 0}
    assert engine.progress(10.5) == {"a": 3, "b": 3, "c": 2, "long": 1}
    assert engine.load(10.5).prefill_tokens == 35


def test_a_queue_goes_on_when_all_of_a_pass_are_aborted():
    engine = EngineSimulator(LATENCY, 100, prefill_budget=5)
    engine.submit(0.0, [Request("a", 5, 1), Request("b", 5, 1)])
    engine.abort(1.0, ["a"])
    assert engine.drain() == [Finish("b", 2 + 2 + 1.0)]


def test_who_comes_in_the_middle_of_a_step_waits_for_its_end():
    engine = EngineSimulator(LATENCY, 100)
    engine.submit(0.0, [Request("a", 5, 10)])
    engine.submit(4.5, [Request("b", 5, 1)])  # two steps are done, the third ends at 5
    assert engine.progress(4.5) == {"a": 2, "b": 0}
    assert (engine.load(4.5).running, engine.load(4.5).waiting) == (1, 1)
    assert engine.drain() == [Finish("b", 5 + 2 + 1.25), Finish("a", 8.25 + 6 * 1.0)]


def test_the_youngest_is_preempted_queued_first_and_computed_again():
    engine = EngineSimulator(LATENCY, 20, watermark=0.0)
    engine.submit(0.0, [Request("old", 6, 10), Request("young", 6, 8), Request("last", 6, 2)])
    # Two fit: 12 tokens, 4 steps to 20. Then `young` leaves with 10 tokens, and `old` ends alone after 6 steps.
    before = engine.advance(2 + 4 * 1.25 + 5.5)
    load = engine.load(12.5)
    assert before == []
    assert (load.preemptions, load.running, load.waiting) == (1, 1, 2)
    assert engine.progress(12.5) == {"old": 9, "young": 4, "last": 0}
    # `young` (10) and `last` (6) then fit together; the pass over both is one.
    assert engine.drain() == [Finish("old", 13.0), Finish("last", 15 + 2 * 1.25), Finish("young", 17.5 + 2 * 1.0)]
    assert engine.load(20.0).recomputed_tokens == 10
    assert engine.load(20.0).prefill_tokens == 6 + 6 + 10 + 6


def test_lower_priority_values_start_first_and_are_preempted_last():
    engine = EngineSimulator(LATENCY, 100, max_sequences=1)
    engine.submit(0.0, [Request("runs", 5, 1)])
    engine.submit(0.5, [Request("first", 5, 1), Request("second", 5, 1)])
    engine.submit(1.0, [Request("started", 5, 1, priority=-1), Request("older", 5, 1, priority=-2)])
    assert [one.id for one in engine.drain()] == ["runs", "older", "started", "first", "second"]
    assert engine.load(100.0).passed == 2
    # Equal ones are served as they arrive, and none passes another.
    engine.submit(100.0, [Request(one, 5, 1, priority=-1) for one in "abc"])
    assert [one.id for one in engine.drain()] == ["a", "b", "c"]
    assert engine.load(200.0).passed == 2

    full = EngineSimulator(LATENCY, 20, watermark=0.0)
    full.submit(0.0, [Request("new", 6, 8), Request("started", 6, 8, priority=-1)])
    # Both fit for four steps. The one that was there first leaves.
    full.advance(2 + 4 * 1.25 + 0.5)
    assert full.progress(7.5) == {"new": 4, "started": 4}
    assert [one.id for one in full.drain()] == ["started", "new"]


def test_a_small_request_of_a_lower_value_passes_a_preempted_one():
    engine = EngineSimulator(LATENCY, 22, max_sequences=2, watermark=0.0)
    engine.submit(0.0, [Request("a", 6, 12), Request("b", 6, 12)])
    # Both fit for five steps, and `small` waits for a place. Then `b` leaves, and `small` starts a step later.
    engine.submit(2.5, [Request("small", 1, 1, priority=-1)])
    assert [one.id for one in engine.drain()] == ["small", "a", "b"]
    assert engine.load(100.0).preemptions == 1


def test_tokens_that_came_with_their_kv_cost_no_prefill():
    engine = EngineSimulator(LATENCY, 100)
    engine.submit(0.0, [Request("moved", 5, 10, generated_tokens=7, cached_tokens=12)])
    assert engine.drain() == [Finish("moved", 3.0)]
    assert engine.load(3.0).prefill_tokens == 0


def test_no_more_run_than_may():
    engine = EngineSimulator(LATENCY, 100, max_sequences=1)
    engine.submit(0.0, [Request("a", 5, 1), Request("b", 5, 1)])
    assert engine.drain() == [Finish("a", 3.0), Finish("b", 6.0)]


def test_an_aborted_one_may_come_back_immediately():
    engine = EngineSimulator(LATENCY, 100)
    engine.submit(0.0, [Request("a", 5, 4)])
    (back,) = engine.abort(3.5, ["a", "unknown"])
    assert back == Request("a", 5, 4, generated_tokens=1)
    engine.submit(3.5, [back])
    # The step under way ends at 4 for nothing; then a pass, then the three tokens that are missing.
    assert engine.drain() == [Finish("a", 9.0)]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("a", 0, 5), "prompt of 0 tokens"),
        (Request("a", 5, 0), "0 of 0 generated"),
        (Request("a", 5, 5, generated_tokens=5), "5 of 5 generated"),
        (Request("a", 5, 5, cached_tokens=6), "6 cached tokens of a context of 5"),
        (Request("a", 60, 41), "60 prompt and 41 response tokens do not fit a KV cache of 100"),
        (Request("here", 5, 5), "'here' is here already"),
    ],
)
def test_what_cannot_be_served_is_refused_and_changes_nothing(request_, message):
    engine = EngineSimulator(LATENCY, 100)
    engine.submit(0.0, [Request("here", 5, 5)])
    with pytest.raises(ValueError, match=message):
        engine.submit(0.5, [Request("fine", 5, 5), request_])
    assert list(engine.progress(0.5)) == ["here"]


def test_bad_settings_and_a_clock_that_goes_back_are_refused():
    for settings_ in ({"kv_tokens": 1}, {"max_sequences": 0}, {"watermark": 1.0}):
        with pytest.raises(ValueError, match="at least 2, at least 1, and a share below 1"):
            EngineSimulator(LATENCY, **{"kv_tokens": 100, **settings_})
    engine = EngineSimulator(LATENCY, 100, now=5.0)
    with pytest.raises(ValueError, match=r"from 5.0 to 4.0"):
        engine.advance(4.0)


def test_the_work_grows_with_events_not_with_tokens():
    """A thousand times the tokens, as many events: no loop over steps. Ten times the time is far from a thousand."""

    def drain(scale):
        engine = EngineSimulator(LatencyModel(((1.0, 0.01), (64.0, 0.02)), 1e-9, 0.1, 1e-5, 0.0), 2_000_000_000)
        engine.submit(0.0, [Request(one, 100, scale * (200 + one)) for one in range(500)])
        assert len(engine.drain()) == 500

    assert growth(lambda: drain(1), lambda: drain(1000)) < 10


def test_a_round_of_1024_accelerators_is_a_few_events_a_response():
    """8,192 responses of a 32B model at TP4: 256 replicas, driven event by event as a simulator does."""
    latency = roofline(QWEN2_5_32B, H800, 4)
    engines = [EngineSimulator(latency, memory(QWEN2_5_32B, H800, 4).kv_tokens) for _ in range(256)]
    for number, engine in enumerate(engines):
        engine.submit(0.0, [Request(one, 150, 1 + one * 7919 % 16384) for one in range(number, 8192, 256)])
    agenda = [(engine.next_event, number) for number, engine in enumerate(engines)]
    heapq.heapify(agenda)
    finished = looks = 0
    while agenda:
        now, number = heapq.heappop(agenda)
        finished += len(engines[number].advance(now))
        looks += 1
        if engines[number].next_event < math.inf:
            heapq.heappush(agenda, (engines[number].next_event, number))
    assert finished == 8192
    assert looks < 2 * 8192
