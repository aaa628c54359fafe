"""What a rank needs by account, and that a job is refused which cannot have it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from test_training_ranks import settings_of
from training_toys import VOCABULARY, save_tiny_model

from rljob_api import RLJob
from rljob_runtime.coordinator.protocols import Refused
from rljob_runtime.training.attention import UnsupportedModel
from rljob_runtime.training.loading import described, fill, size_of
from rljob_runtime.training.memory import GIB, ModelSize, Work, account, refusal
from rljob_runtime.training.model import read_config
from rljob_runtime.training.trainer import TrainerRank, TrainerSettings

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZE = ModelSize(parameters=70 * 10**9, largest_unit=2 * 10**9, vocabulary=128_000, hidden=8192, layers=80)


@pytest.mark.parametrize(
    ("changes", "bytes_a_weight"),
    [({}, 20), ({"rounded": False}, 16), ({"early": True}, 24), ({"reference": True, "early": True}, 28)],
)
def test_bytes_of_a_weight(changes, bytes_a_weight) -> None:
    work = dataclasses.replace(Work(ranks=8, row=0, rounded=True, logit=2), **changes)
    share = account(SIZE, work)[0]
    assert share.bytes == bytes_a_weight * 70 * 10**9 // 8
    assert share.what == f"{bytes_a_weight} bytes a weight of 70,000,000,000 over 8 ranks"


def test_a_sum_that_is_too_large_is_said_in_its_parts() -> None:
    items = account(SIZE, Work(ranks=16, row=16_384, rounded=True, logit=2, checkpointed=True))
    assert [round(item.bytes / GIB, 1) for item in items] == [81.5, 7.8, 14.9, 40.0]
    assert refusal(items, 150 * GIB, "H200") is None
    message = refusal(items, 80 * GIB, "H100")
    assert message is not None
    assert "each rank needs 144.2" in message
    assert "H100 has 80.00 GiB" in message
    assert "81.49 GiB for 20 bytes a weight of 70,000,000,000 over 16 ranks" in message
    assert "spec.trainer.replicas" in message
    assert "maxTokensPerMicrobatch" in message


def test_the_size_of_a_model_is_known_before_it_is_loaded(tmp_path) -> None:
    folder = save_tiny_model(tmp_path, num_hidden_layers=3)
    described_only = described(read_config(folder), torch.float32)
    assert all(parameter.is_meta for parameter in described_only.parameters())
    size = size_of(described_only)
    layer = 16 * (32 + 16 + 16 + 32) + 3 * 16 * 24 + 2 * 16
    outside = VOCABULARY * 16 + 16
    assert size == ModelSize(3 * layer + outside, layer, VOCABULARY, hidden=16, layers=3)


def test_a_job_that_cannot_fit_is_refused_before_its_model_is_loaded(model_folder, tmp_path, monkeypatch) -> None:
    settings = dataclasses.replace(settings_of(model_folder, tmp_path, dtype="bfloat16"), step_tokens=10**15)
    monkeypatch.setattr("rljob_runtime.training.trainer.load_model", lambda *_, **__: pytest.fail("it was loaded"))
    row = f"a row of {settings.training.max_tokens_per_microbatch:,} tokens"
    monkeypatch.setattr("rljob_runtime.training.capacity.host_memory", lambda: 1 << 20)
    with pytest.raises(Refused, match=rf"does not fit: .* 20 bytes a weight .*{row}, 37 entries each"):
        TrainerRank(settings, lambda: pytest.fail("it publishes")).start(1)


def test_a_model_that_was_read_whole_by_one_of_several_ranks_is_refused(model_folder) -> None:
    """As by a release of transformers that reads another way: gradients of whole models are never added up."""
    ranks = SimpleNamespace(mesh=object(), shard=lambda model: None)
    with pytest.raises(UnsupportedModel, match=r"transformers 5\..* is not split over the trainer's ranks"):
        fill(model_folder, read_config(model_folder), torch.float32, "cpu", ranks)  # type: ignore[arg-type]


def test_settings_know_the_longest_sequence_and_the_largest_step() -> None:
    spec = RLJob.model_validate(yaml.safe_load((EXAMPLES / "minimal.yaml").read_text())).spec
    settings = TrainerSettings.from_spec(spec, volume=Path("/v"), cache_folder=Path("/c"))
    data, algorithm = spec.data, spec.algorithm
    assert settings.longest == data.max_prompt_tokens + data.max_response_tokens
    group = data.max_prompt_tokens + algorithm.responses_per_prompt * data.max_response_tokens
    assert settings.step_tokens == algorithm.prompts_per_round * group
    assert settings.early is False
