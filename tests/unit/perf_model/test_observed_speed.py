"""A latency model from what engines were seen to do."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.perf_model.hardware import H800
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import QWEN2_5_7B, QWEN2_5_32B
from rljob_runtime.perf_model.observed_speed import Speed, SpeedSample, binned, fit_latency, newest_speeds, slowdown
from rljob_runtime.perf_model.roofline import roofline


def seen(
    latency: LatencyModel, random: Random, noise: float = 0.0, batches: tuple[int, ...] = (1, 4, 16, 60, 100, 200)
):
    """Stretches as a round has them: large batches of short contexts, small ones of long contexts."""
    stretches = []
    for batch in batches:
        for mean in (200, 800, 3000):
            steps, context = random.randint(5, 50), batch * mean * random.uniform(0.8, 1.2)
            seconds = steps * latency.step(batch, context) * random.uniform(1 - noise, 1 + noise)
            stretches.append(SpeedSample(steps, batch, context, seconds))
    return Speed(2, 100_000, 256, tuple(stretches))


@pytest.mark.parametrize("shape", [QWEN2_5_7B, QWEN2_5_32B])
def test_a_roofline_is_found_again_between_the_batches_seen(shape):
    latency = roofline(shape, H800)
    found = fit_latency([seen(latency, Random(0))])
    for batch in (2, 8, 40, 90, 150):
        for mean in (300, 2000):
            assert found.step(batch, batch * mean) == pytest.approx(latency.step(batch, batch * mean), rel=0.05)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0, 0.3))
def test_noise_makes_no_latency_that_is_none(seed, noise):
    latency = roofline(QWEN2_5_7B, H800)
    found = fit_latency([seen(latency, Random(seed), noise)])
    steps = [found.step(batch, batch * 500) for batch in (1, 10, 64, 256, 500)]
    assert steps == sorted(steps)
    assert found.step(60, 60 * 800) == pytest.approx(latency.step(60, 60 * 800), rel=0.05 + noise)


def test_prefill_is_what_a_start_takes_beyond_its_steps():
    latency = roofline(QWEN2_5_7B, H800)
    prompts = 50 * 300
    start = SpeedSample(20, 50, prompts, 20 * latency.step(50, prompts) + prompts * 2e-5, prompts)
    speed = seen(latency, Random(0))
    found = fit_latency([speed, Speed(stretches=(start,))])
    assert found.prefill_token_seconds == pytest.approx(2e-5, rel=0.1)
    assert found.step(40, 40 * 500) == pytest.approx(latency.step(40, 40 * 500), rel=0.05)
    assert fit_latency([speed]).prefill_token_seconds == 0


def test_long_contexts_are_predicted_from_short_prompts_and_the_shape():
    """The share of attention in a prompt of 4,000 tokens is 5 %, in a context of 64,000 tokens 48 %."""
    latency, short, long = roofline(QWEN2_5_7B, H800), 4000, 64_000
    assert latency.square_tokens == pytest.approx(QWEN2_5_7B.square_tokens, rel=1e-9)
    latency = replace(latency, prefill_seconds=0.0)
    starts = tuple(
        SpeedSample(1, 8, 8 * short, latency.prefill(8 * short, 8 * short**2), 8 * short, prompt_squares=8 * short**2)
        for _ in range(4)
    )
    decode = seen(latency, Random(0))
    found, blind = (
        fit_latency([replace(decode, stretches=(*decode.stretches, *starts), square_tokens=square)])
        for square in (QWEN2_5_7B.square_tokens, 0.0)
    )
    assert found.prefill(long, long**2) == pytest.approx(latency.prefill(long, long**2), rel=0.02)
    assert blind.prefill(long, long**2) < 0.6 * latency.prefill(long, long**2)


def test_prompts_of_an_earlier_version_are_taken_as_they_are():
    """It stored no squares, so that the seconds of a token have them: they must not count twice."""
    decode = seen(roofline(QWEN2_5_7B, H800), Random(0))
    old = SpeedSample(1, 8, 8000, 5.0, 8000)
    former, now = (
        replace(decode, stretches=(*decode.stretches, one), square_tokens=1e-5)
        for one in (old, replace(old, prompt_squares=8 * 1000**2))
    )
    assert fit_latency([former]).prefill_square_seconds == 0
    assert fit_latency([former]).prefill_token_seconds > 0
    assert fit_latency([now]).prefill_square_seconds > 0
    assert fit_latency([former, now]) == fit_latency([replace(former, stretches=decode.stretches), now])


def test_a_stretch_of_several_prompts_keeps_their_squares():
    one, other = (SpeedSample(1, 4, 40, 0.1, 40, prompt_squares=squares) for squares in (400, 100))
    assert SpeedSample.joined([one, other]).prompt_squares == 500


def test_without_a_stretch_there_is_no_latency():
    assert fit_latency([]) is None
    assert fit_latency([Speed(4, 1000, 16)]) is None


def test_how_much_slower_is_a_ratio_of_what_was_seen():
    latency = roofline(QWEN2_5_7B, H800)
    slow = LatencyModel(tuple((b, 1.2 * s) for b, s in latency.knots), 1.2 * latency.context_token_seconds, 0, 0, 0)
    assert slowdown(latency, [seen(slow, Random(1))]) == pytest.approx(1.2)
    assert slowdown(latency, []) == 1.0


def test_speed_during_loans_describes_the_engine_not_streaming():
    latency = LatencyModel(((1, 0.01), (1024, 0.01)), 0.0, 0.0, 0.0, 0.0)
    before = SpeedSample(100, 8, 800, 1.1)
    beside = [SpeedSample(100, 8, 800, 3.0, lent=True), SpeedSample(100, 16, 1600, 3.0, lent=True)]
    round_ = Speed(stretches=binned([before, *beside]))
    assert len(round_.stretches) == 3
    assert slowdown(latency, [round_]) == pytest.approx(1.1)
    assert slowdown(latency, [Speed(stretches=tuple(beside))]) == 1.0
    assert fit_latency([round_]).step(16, 1600) == pytest.approx(
        fit_latency([Speed(stretches=tuple(beside))]).step(16, 1600)
    )
    assert Speed.from_json(round_.to_json()) == round_


def test_joining_keeps_steps_and_seconds():
    speed = seen(roofline(QWEN2_5_7B, H800), Random(2))
    start = SpeedSample(5, 10, 100, 1.0, prompt_tokens=40)
    few = binned([*speed.decode, *speed.decode, start, start])
    assert len(few) <= len(speed.decode) + 1
    for name in ("steps", "seconds", "prompt_tokens"):
        whole = sum(getattr(one, name) for one in (*speed.stretches, start))
        assert sum(getattr(one, name) for one in few) == pytest.approx(2 * whole)


def test_what_is_stored_reads_back():
    speed = seen(roofline(QWEN2_5_7B, H800), Random(3))
    assert Speed.from_json(speed.to_json()) == speed
    assert Speed.from_json(Speed().to_json()) == Speed()


ROUNDS = tuple(Speed(stretches=(SpeedSample(steps, 1.0, 1.0, 1.0),)) for steps in (1, 2, 3, 4, 5))


@pytest.mark.parametrize(
    ("past", "speed", "kept"),
    [
        pytest.param((), ROUNDS[0], ROUNDS[:1], id="the first round"),
        pytest.param(ROUNDS[:3], ROUNDS[3], ROUNDS[:4], id="a fourth round"),
        pytest.param(ROUNDS[:4], ROUNDS[4], ROUNDS[1:], id="a fifth round displaces the oldest"),
        pytest.param(ROUNDS[:4], Speed(), ROUNDS[:4], id="a round without a sample displaces none"),
    ],
)
def test_a_fit_considers_the_newest_rounds_with_samples(past, speed, kept):
    assert newest_speeds(past, speed) == kept
