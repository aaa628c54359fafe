"""From measurements to the latency model: exact where they are, near where they are noisy, refused where they are of
something else."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.perf_model.fitting import decode_error, fit
from rljob_runtime.perf_model.hardware import H100
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.least_squares import nonnegative
from rljob_runtime.perf_model.model_shape import QWEN2_5_7B, QWEN2_5_14B
from rljob_runtime.perf_model.profile import Profile, ProfileError, Sample, Subject, medians
from rljob_runtime.perf_model.roofline import roofline

SUBJECT = Subject(model=QWEN2_5_7B, engine="VLLM", engine_version="0.32.0", hardware="8 x H100")
BATCHES = (1, 2, 8, 32, 128, 256)
CONTEXTS = (64, 512, 4096)


def measured(latencies, noise=0.0, seed=0, batches=BATCHES, contexts=CONTEXTS):
    """A profile as an engine that follows these latency models would give it, each time off by up to `noise`."""
    rng = random.Random(seed)

    def sample(size, batch, context, seconds):
        return Sample(
            tensor_parallel=size, batch=batch, context=context, seconds=seconds * (1 + rng.uniform(-noise, noise))
        )

    grid = [
        (size, latency, batch, context)
        for size, latency in latencies.items()
        for batch in batches
        for context in contexts
    ]
    return Profile(
        subject=SUBJECT,
        kv_tokens=dict.fromkeys(latencies, 100_000),
        decode=tuple(sample(s, b, c, latency.step(b, b * c)) for s, latency, b, c in grid),
        prefill=tuple(
            sample(s, b, c, latency.prefill(b * c, b * c * c)) for s, latency, b, c in grid if b * c < 100_000
        ),
    )


def test_a_profile_of_the_roofline_gives_the_roofline_back():
    latencies = {size: roofline(QWEN2_5_7B, H100, size) for size in (1, 2, 4)}
    profile = measured(latencies)
    for size, latency in latencies.items():
        fitted = fit(profile, size)
        assert fitted.kv_tokens == 100_000
        assert fitted.decode.worst < 1e-6
        assert fitted.prefill.worst < 1e-6
        for batch, context in ((1, 100), (20, 1000), (100, 8000)):
            assert fitted.latency.step(batch, batch * context) == pytest.approx(
                latency.step(batch, batch * context), rel=1e-3
            )


@given(st.integers(0, 10_000))
@settings(max_examples=50)
def test_the_fit_averages_noise_away(seed):
    """Ten per cent of noise: less than that in the fit on average, and nowhere far more, on loads not measured."""
    latency = roofline(QWEN2_5_7B, H100)
    fitted = fit(measured({1: latency}, noise=0.1, seed=seed), 1)
    clean = measured({1: latency}, batches=(4, 64, 200), contexts=(256, 2048)).decode
    error = decode_error(fitted.latency, clean)
    assert error.mean < 0.1
    assert error.worst < 0.25


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 5000), st.floats(1e-4, 10)), min_size=2, max_size=30),
)
def test_whatever_was_measured_the_latency_is_sane_or_refused(rows):
    """A latency model that exists never speeds up by a longer batch or context."""
    samples = tuple(Sample(tensor_parallel=1, batch=b, context=c, seconds=s) for b, c, s in rows)
    profile = Profile(subject=SUBJECT, kv_tokens={1: 1000}, decode=samples, prefill=samples)
    try:
        latency = fit(profile, 1).latency
    except ProfileError:
        return
    bases = [latency.base(batch) for batch in range(1, 400, 7)]
    assert all(earlier <= later * (1 + 1e-12) for earlier, later in pairwise(bases))
    assert latency.step(5, 100) <= latency.step(5, 200)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(6, 20))
def test_least_squares_meet_their_optimality_conditions(seed, columns, rows):
    """Karush, Kuhn, Tucker: no coefficient below zero; a positive one has no slope, a zero one none that would help."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-6, 6, size=columns)
    values = rng.normal(size=rows)
    x = nonnegative(matrix, values)
    slope = (matrix / np.linalg.norm(matrix, axis=0)).T @ (values - matrix @ x)
    assert (x >= 0).all()
    assert (slope <= 1e-8).all()
    assert np.abs(slope[x > 0]).max(initial=0.0) < 1e-8


def test_errors_say_where_they_are_worst():
    latency = LatencyModel(((1.0, 1.0), (9.0, 2.0)), 0.0, 1.0, 0.0, 0.0)
    rows = [Sample(tensor_parallel=1, batch=1, context=5, seconds=1.0),
            Sample(tensor_parallel=1, batch=9, context=5, seconds=1.6)]  # fmt: skip
    error = decode_error(latency, rows)
    assert str(error) == "12.5% on average, 25.0% at batch 9 and context 5"


def test_repeats_of_a_load_are_their_median():
    def sample(size, batch, seconds, replica=0.0):
        return Sample(tensor_parallel=size, batch=batch, context=9, seconds=seconds, replica_seconds=replica)

    paused = [sample(1, 4, 1.0, 0.2), sample(1, 4, 9.0, 7.0), sample(1, 4, 1.1, 0.1)]
    assert medians([*paused, sample(2, 4, 5.0), sample(1, 8, 3.0)]) == (
        sample(1, 4, 1.1, 0.2),
        sample(1, 8, 3.0),
        sample(2, 4, 5.0),
    )


# --- as data ---


def test_a_profile_goes_through_json_and_back():
    profile = measured({1: roofline(QWEN2_5_7B, H100), 2: roofline(QWEN2_5_7B, H100, 2)})
    assert Profile.from_json(profile.to_json()) == profile
    assert profile.tensor_parallel_sizes == (1, 2)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("decode", 2, "seconds"), -1.0, r"profile.decode\[2\].seconds: -1.0: Input should be greater than 0"),
        (("decode", 0, "batch"), 1.5, r"profile.decode\[0\].batch: 1.5"),
        (("prefill", 0, "context"), 0, r"profile.prefill\[0\].context: 0"),
        (("kv_tokens",), {"1": 0}, r"profile.kv_tokens.1: 0"),
        (("kv_tokens",), {"one": 9}, r"profile.kv_tokens.one"),
        (("format",), 2, "profile.format: 2: Input should be 1"),
        (("subject", "engine"), None, "profile.subject.engine: None"),
        (("subject", "model", "kv_heads"), 3, "28 heads do not share 3 KV heads"),
        (("extra",), 1, "profile.extra: 1: Extra inputs are not permitted"),
    ],
)
def test_bad_data_is_refused_with_its_path(path, value, message):
    data = json.loads(measured({1: roofline(QWEN2_5_7B, H100)}).to_json())
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ProfileError, match=message):
        Profile.from_json(json.dumps(data))


def test_what_is_no_profile_at_all_is_refused():
    with pytest.raises(ProfileError, match="profile: Invalid JSON"):
        Profile.from_json("{")
    with pytest.raises(ProfileError, match=r"profile.subject: Field required \(and 3 more\)"):
        Profile.from_json("{}")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"model": QWEN2_5_14B}, r"model.layers: measured with 28 \(Qwen2.5-7B\), wanted for 48 \(Qwen2.5-14B\)"),
        ({"model": replace(QWEN2_5_7B, dtype_bytes=4)}, "model.dtype_bytes: measured with 2"),
        ({"engine": "Reference"}, "profile.subject.engine: measured with VLLM, wanted for Reference"),
        ({"engine_version": "0.33.0"}, "engine_version: measured with 0.32.0, wanted for 0.33.0"),
        ({"hardware": "8 x A40"}, "hardware: measured with 8 x H100"),
    ],
)
def test_a_profile_of_something_else_is_refused(wanted, message):
    profile = measured({1: roofline(QWEN2_5_7B, H100)})
    with pytest.raises(ProfileError, match=message):
        profile.check(SUBJECT.model_copy(update=wanted))


def test_a_checkpoint_of_the_model_is_no_other_model():
    measured({1: roofline(QWEN2_5_7B, H100)}).check(
        SUBJECT.model_copy(update={"model": replace(QWEN2_5_7B, name="step-200")})
    )


@pytest.mark.parametrize(
    ("settings_", "size", "message"),
    [
        ({}, 4, "tensor parallel size 4 was not measured; 1 was"),
        ({"batches": (8,)}, 1, r"profile.decode: batch \[8\] with tensor parallel size 1; at least two values"),
        ({"contexts": (64,)}, 1, r"profile.decode: context \[64\]"),
    ],
)
def test_too_little_to_fix_a_latency_is_refused(settings_, size, message):
    profile = measured({1: roofline(QWEN2_5_7B, H100)}, **settings_)
    with pytest.raises(ProfileError, match=message):
        fit(profile, size)
