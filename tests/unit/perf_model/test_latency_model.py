"""The latency model, the shapes, the roofline, the memory: against sums, published counts and plain physics."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.perf_model.hardware import A40, ACCELERATORS, H100, H800, SGLANG_NVLINK, VLLM_NVLINK
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import (
    LLAMA3_1_8B,
    MODELS,
    QWEN2_5_7B,
    QWEN2_5_14B,
    QWEN2_5_32B,
    QWEN2_5_72B,
    SMOLLM2_135M,
    ModelShape,
    square_tokens,
)
from rljob_runtime.perf_model.roofline import memory, roofline

LATENCIES = st.builds(
    lambda first, rise, context: LatencyModel(((1.0, first), (64.0, first + rise)), context, 0.1, 1e-5, 1e-9),
    st.floats(1e-5, 10),
    st.floats(0, 10),
    st.one_of(st.just(0.0), st.floats(1e-12, 1e-3)),
)


@given(LATENCIES, st.integers(1, 300), st.integers(0, 10**6), st.integers(0, 200))
def test_steps_in_a_row_cost_their_sum(latency, batch, context, steps):
    one_by_one = sum(latency.step(batch, context + batch * step) for step in range(steps))
    assert latency.decode(batch, context, steps) == pytest.approx(one_by_one, rel=1e-9)


@given(LATENCIES, st.integers(1, 300), st.integers(0, 10**6), st.floats(0, 1e4))
def test_steps_within_is_the_inverse_of_decode(latency, batch, more, seconds):
    context = batch + more
    steps = latency.steps_within(batch, context, seconds)
    assert latency.decode(batch, context, steps) <= seconds or steps == 0
    assert latency.decode(batch, context, steps + 1) > seconds


def test_base_is_flat_then_between_the_knots_then_goes_on():
    latency = LatencyModel(((2.0, 1.0), (4.0, 2.0), (8.0, 3.0)), 0.0, 0.0, 0.0, 0.0)
    assert [latency.base(batch) for batch in (1, 2, 3, 4, 6, 8, 12)] == [1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0]
    assert LatencyModel(((2.0, 1.0),), 0.0, 0.0, 0.0, 0.0).base(9) == 1.0


@pytest.mark.parametrize(
    ("knots", "context", "message"),
    [
        ((), 0.0, "are not rising"),
        (((2.0, 1.0), (2.0, 1.0)), 0.0, "are not rising"),
        (((1.0, 0.0),), 0.0, "does not take time"),
        (((1.0, math.nan),), 0.0, "does not take time"),
        (((1.0, 1.0),), -1e-9, "context_token_seconds: -1e-09"),
        (((1.0, 1.0),), math.inf, "context_token_seconds: inf"),
    ],
)
def test_a_latency_that_is_none_is_refused(knots, context, message):
    with pytest.raises(ValueError, match=message):
        LatencyModel(knots, context, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen2.5-7B", 7.61),
        ("Qwen2.5-14B", 14.7),
        ("Qwen2.5-32B", 32.5),
        ("Qwen2.5-72B", 72.7),
        ("Qwen3-8B", 8.2),
        ("Qwen3-14B", 14.8),
        ("Llama-3.1-8B", 8.03),
        ("SmolLM2-135M", 0.1345),
        ("SmolLM2-360M", 0.362),
        ("SmolLM2-1.7B", 1.71),
    ],
)
def test_shapes_have_as_many_parameters_as_their_cards_say(name, billions):
    assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_kv_of_a_token_is_what_pat_moves():
    # §5.4: nine sequences of 12k tokens hold 14 GB.
    assert LLAMA3_1_8B.kv_token_bytes() == 131072
    assert 9 * 12 * 1024 * LLAMA3_1_8B.kv_token_bytes() / 1e9 == pytest.approx(14, rel=0.05)


def test_kv_heads_are_split_and_then_copied():
    assert [QWEN2_5_72B.kv_token_bytes(size) for size in (1, 2, 8)] == [327680, 163840, 40960]
    one_head = 2 * 28 * 128 * 2
    assert [replace(QWEN2_5_7B, heads=32).kv_token_bytes(size) for size in (4, 8, 16)] == [one_head] * 3


def test_a_layout_that_does_not_split_the_heads_is_refused():
    with pytest.raises(
        ValueError, match=r"size 8 does not split the 28 heads and 4 KV heads of Qwen2.5-7B.* 1, 2, 4, 28"
    ):
        roofline(QWEN2_5_7B, H800, 8)
    with pytest.raises(
        ValueError, match=r"size 2 does not split the 9 heads and 3 KV heads of SmolLM2-135M.* 1, 3, 9 "
    ):
        memory(SMOLLM2_135M, H800, 2)
    with pytest.raises(ValueError, match="size 0 does not split"):
        roofline(QWEN2_5_7B, H800, 0)


CONFIG = {
    "num_hidden_layers": 30, "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip


def test_a_shape_from_a_config_of_hugging_face():
    config = dict(CONFIG)
    assert ModelShape.from_config("SmolLM2-135M", config) == SMOLLM2_135M
    del config["intermediate_size"]
    with pytest.raises(ValueError, match=r"toy: config\.json has no 'intermediate_size'"):
        ModelShape.from_config("toy", config)
    with pytest.raises(ValueError, match="9 heads do not share 2 KV heads"):
        replace(SMOLLM2_135M, kv_heads=2)
    with pytest.raises(ValueError, match="layers is 0"):
        replace(SMOLLM2_135M, layers=0)


def test_work_of_attention_is_known_from_a_dense_config_only(tmp_path):
    assert square_tokens(tmp_path) == 0, "no file"
    for text, found in (
        (json.dumps(CONFIG), SMOLLM2_135M.square_tokens),
        (json.dumps({**CONFIG, "num_local_experts": 8}), 0.0),
        (json.dumps({**CONFIG, "sliding_window": 4096}), 0.0),
        (json.dumps({**CONFIG, "sliding_window": 4096, "use_sliding_window": False}), SMOLLM2_135M.square_tokens),
        (json.dumps({**CONFIG, "layer_types": ["full_attention", "sliding_attention"]}), 0.0),
        (json.dumps({**CONFIG, "layer_types": ["full_attention"]}), SMOLLM2_135M.square_tokens),
        (json.dumps({**CONFIG, "num_attention_heads": 0}), 0.0),
        (json.dumps({**CONFIG, "hidden_size": [1, 2]}), 0.0),
        ("[]", 0.0),
        (json.dumps({"vocab_size": 9}), 0.0),
        ("{", 0.0),
    ):
        (tmp_path / "config.json").write_text(text)
        assert square_tokens(tmp_path) == found
    assert SMOLLM2_135M.square_tokens == pytest.approx(30 * 576 / SMOLLM2_135M.matrix_parameters)


# --- the roofline ---


def test_no_step_is_faster_than_the_wires():
    """Weights and KV cross the memory bus once a step; prefill multiplies every token with every matrix."""
    for model in MODELS.values():
        for accelerator in ACCELERATORS.values():
            latency = roofline(model, accelerator)
            bytes_read = model.matrix_parameters * 2 + 10_000 * model.kv_token_bytes()
            assert latency.step(4, 10_000) > bytes_read / accelerator.memory_bandwidth
            assert latency.prefill(8192, 0) > 2 * model.matrix_parameters * 8192 / accelerator.flops


def test_the_ridge_parts_memory_from_compute():
    # Half the peak flops over three quarters of the bandwidth: 2·B flops meet 2 bytes at B = 197.
    latency = roofline(QWEN2_5_7B, H800)
    ridge = 0.5 * H800.flops / (0.75 * H800.memory_bandwidth)
    assert latency.knots[1][0] == pytest.approx(ridge)
    before, after = latency.base(100) - latency.base(99), latency.base(300) - latency.base(299)
    assert before == pytest.approx(VLLM_NVLINK.sequence_seconds)
    assert after == pytest.approx(VLLM_NVLINK.sequence_seconds + 2 * QWEN2_5_7B.matrix_parameters / (0.5 * H800.flops))


def test_small_batches_gain_by_accelerators_and_large_ones_lose_on_pcie():
    """PAT's observation (§3.1)."""
    from rljob_runtime.perf_model.hardware import SGLANG_PCIE

    small = [roofline(LLAMA3_1_8B, A40, size, SGLANG_PCIE).step(1, 1000) for size in (2, 4, 8)]
    assert small == sorted(small, reverse=True)
    # The same 128 sequences on eight accelerators: 32 a replica at TP2, all at TP8.
    assert roofline(LLAMA3_1_8B, A40, 2, SGLANG_PCIE).step(32, 32_000) < roofline(
        LLAMA3_1_8B, A40, 8, SGLANG_PCIE
    ).step(128, 128_000)


def test_a_batch_of_64_costs_what_one_of_8_does_at_short_context_only():
    """Laminar's claim (§2.4), with the limit that it does not name."""
    latency = roofline(QWEN2_5_32B, H800, 4)
    assert latency.step(64, 64 * 512) < 1.2 * latency.step(8, 8 * 512)
    assert latency.step(64, 64 * 8192) > 1.5 * latency.step(8, 8 * 8192)


def test_attention_makes_long_prefill_dearer_than_its_tokens():
    latency = roofline(QWEN2_5_7B, H100, 1, SGLANG_NVLINK)
    long, short = latency.prefill(32_768, 32_768**2), latency.prefill(32_768, 32 * 1024**2)
    assert 1.2 < long / short < 2


# --- memory ---


def test_memory_adds_up():
    plan = memory(QWEN2_5_14B, H800, 2, use=0.9)
    assert plan.weights == QWEN2_5_14B.parameters  # two bytes each, over two
    assert plan.weights + plan.activations + plan.kv_tokens * plan.kv_token <= 0.9 * 80e9
    assert plan.weights + plan.activations + (plan.kv_tokens + 1) * plan.kv_token > 0.9 * 80e9


def test_twice_the_accelerators_hold_more_than_twice_the_kv():
    one, two = memory(QWEN2_5_14B, H800, 1), memory(QWEN2_5_14B, H800, 2)
    assert two.kv_tokens > 2 * one.kv_tokens


def test_a_model_that_does_not_fit_is_refused_with_the_sizes():
    with pytest.raises(
        ValueError, match=r"Qwen2.5-72B does not fit H800 with tensor parallel size 2: 72.7 GB of weights"
    ):
        memory(QWEN2_5_72B, H800, 2)
