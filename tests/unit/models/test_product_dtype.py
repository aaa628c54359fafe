"""Weights of a format multiply in one that the device has."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from rljob_runtime.models import product_dtype as formats
from rljob_runtime.models.product_dtype import product_dtype
from rljob_runtime.rollout.engines.base import EngineSettings
from rljob_runtime.rollout.engines.reference.engine import ReferenceEngine
from rljob_runtime.training.config import TrainingConfig
from tests.support.training.toys import save_tiny_model

SLOWEST = 4.0
"""Times of float32 that a product in the chosen format may take. An emulated one takes fifty."""


@pytest.fixture
def has_bfloat16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the processor is said to have bfloat16 products."""
    monkeypatch.setattr(formats, "multiplies_bfloat16", lambda: request.param)
    return bool(request.param)


@pytest.mark.parametrize(
    ("published", "device", "has_bfloat16", "expected"),
    [
        ("bfloat16", "cpu", True, "bfloat16"),
        ("bfloat16", "cpu", False, "float32"),
        ("bfloat16", "cuda", False, "bfloat16"),
        ("bfloat16", "cuda:1", False, "bfloat16"),
        ("float32", "cpu", False, "float32"),
        ("float64", "cpu", False, "float64"),
        ("float16", "cpu", False, "float16"),
    ],
    indirect=["has_bfloat16"],
)
def test_the_format_of_products(published: str, device: str, has_bfloat16: bool, expected: str) -> None:
    assert product_dtype(published, device) == expected


@pytest.mark.parametrize("has_bfloat16", [True, False], indirect=True)
def test_the_trainer_runs_autocast_where_the_processor_has_it(has_bfloat16: bool) -> None:
    config = TrainingConfig(dtype="bfloat16")
    assert config.autocast("cpu") is has_bfloat16
    assert config.autocast("cuda")
    assert not TrainingConfig(dtype="float32").autocast("cpu")


@pytest.mark.parametrize("has_bfloat16", [True, False], indirect=True)
def test_an_engine_computes_in_a_format_that_the_processor_has(
    has_bfloat16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = EngineSettings(folder=save_tiny_model(tmp_path), weights=tmp_path, dtype="bfloat16", kv_blocks=8)
    engine = ReferenceEngine(settings)
    assert engine._model.dtype is (torch.bfloat16 if has_bfloat16 else torch.float32)


def test_a_torch_without_onednn_has_no_bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    formats.multiplies_bfloat16.cache_clear()
    try:
        assert not formats.multiplies_bfloat16()
    finally:
        formats.multiplies_bfloat16.cache_clear()


def test_products_of_bfloat16_weights_are_not_emulated() -> None:
    """Neither factor is transposed: the product of a backward pass, which takes longest if it is emulated."""

    def seconds(dtype: torch.dtype) -> float:
        left, right = torch.ones(256, 256, dtype=dtype), torch.ones(256, 256, dtype=dtype)
        best = float("inf")
        for _ in range(5):
            began = time.process_time()
            torch.matmul(left, right)
            best = min(best, time.process_time() - began)
        return best

    chosen = getattr(torch, product_dtype("bfloat16", "cpu"))
    assert seconds(chosen) < SLOWEST * seconds(torch.float32)
