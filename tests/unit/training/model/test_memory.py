"""What a rank needs by account, that ranks which load, train and publish take as much, and that a job is refused which
cannot have it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from rljob_api import RLJob
from rljob_runtime.protocols import Refused
from rljob_runtime.training.model.attention import UnsupportedModel
from rljob_runtime.training.model.loading import load_shards, on_meta_device, size_of
from rljob_runtime.training.model.memory import GIB, ModelSize, Work, memory_items, refusal
from rljob_runtime.training.model.pretrained import read_config
from rljob_runtime.training.ranks.rank import TrainerRank
from rljob_runtime.training.ranks.settings import TrainerSettings
from tests.support.paths import ROOT
from tests.support.training.rank_groups import settings_of
from tests.support.training.toys import VOCABULARY, save_tiny_model, save_tokenizer

EXAMPLES = ROOT / "examples"
MEASURED = "tests.support.training.memory_of_ranks"
SLACK = 16 << 20
"""Bytes of a process that are no tensor of the model: buffers of collectives and kernels, activations, Python."""
SIZE = ModelSize(
    parameters=70 * 10**9, largest_layer=10**9, outside=2 * 10**9, vocabulary=128_000, hidden=8192, layers=80
)


@pytest.mark.parametrize(
    ("changes", "bytes_a_weight"),
    [({}, 20), ({"rounded": False}, 16), ({"early": True}, 24), ({"reference": True, "early": True}, 28)],
)
def test_bytes_of_a_weight(changes, bytes_a_weight) -> None:
    work = dataclasses.replace(Work(ranks=8, row=0, rounded=True, logit=2), **changes)
    share = memory_items(SIZE, work)[0]
    assert share.bytes == bytes_a_weight * 70 * 10**9 // 8
    assert share.what == f"{bytes_a_weight} bytes a weight of 70,000,000,000 over 8 ranks"


def test_a_sum_that_is_too_large_is_said_in_its_parts() -> None:
    items = memory_items(SIZE, Work(ranks=16, row=16_384, rounded=True, logit=2, checkpointed=True))
    assert [round(item.bytes / GIB, 1) for item in items] == [81.5, 7.8, 29.8, 40.0]
    assert refusal(items, 160 * GIB, "H200") is None
    message = refusal(items, 80 * GIB, "H100")
    assert message is not None
    assert "each rank needs 159.1" in message
    assert "H100 has 80.00 GiB" in message
    assert "81.49 GiB for 20 bytes a weight of 70,000,000,000 over 16 ranks" in message
    assert "spec.trainer.replicas" in message
    assert "maxTokensPerMicrobatch" in message


def test_the_size_of_a_model_is_known_before_it_is_loaded(tmp_path) -> None:
    folder = save_tiny_model(tmp_path, num_hidden_layers=3)
    described_only = on_meta_device(read_config(folder), torch.float32)
    assert all(parameter.is_meta for parameter in described_only.parameters())
    size = size_of(described_only)
    layer = 16 * (32 + 16 + 16 + 32) + 3 * 16 * 24 + 2 * 16
    outside = VOCABULARY * 16 + 16
    assert size == ModelSize(3 * layer + outside, layer, outside, VOCABULARY, hidden=16, layers=3)


def test_a_job_that_cannot_fit_is_refused_before_its_model_is_loaded(model_folder, tmp_path, monkeypatch) -> None:
    settings = dataclasses.replace(settings_of(model_folder, tmp_path, dtype="bfloat16"), step_tokens=10**15)
    monkeypatch.setattr("rljob_runtime.training.ranks.rank.load_model", lambda *_, **__: pytest.fail("it was loaded"))
    row = f"a row of {settings.training.max_tokens_per_microbatch:,} tokens"
    monkeypatch.setattr("rljob_runtime.training.model.capacity.host_memory", lambda: 1 << 20)
    with pytest.raises(Refused, match=rf"does not fit: .* 20 bytes a weight .*{row}, 37 entries each"):
        TrainerRank(settings, lambda: pytest.fail("it publishes")).start(1)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_peak_of_a_rank_falls_with_the_number_of_ranks(tmp_path) -> None:
    """A model of 15 million weights in 8 layers, its embeddings small beside them. What loading, two steps and a
    publication add to a rank's memory is its account within a tenth: 20 bytes a weight over the ranks, and layers."""
    folder = save_tiny_model(
        tmp_path / "model", hidden_size=384, intermediate_size=1280, num_hidden_layers=8, head_dim=96,
        tie_word_embeddings=False,
    )  # fmt: skip
    save_tokenizer(folder)
    size = size_of(on_meta_device(read_config(folder), torch.float32))
    peaks = {ranks: _peaks(folder, tmp_path / str(ranks), ranks) for ranks in (1, 2, 4)}
    for ranks, each in peaks.items():
        needed = sum(item.bytes for item in memory_items(size, Work(ranks=ranks, row=64, rounded=True, logit=2)))
        assert min(each) >= 0.9 * needed, (ranks, needed, peaks)
        assert max(each) <= 1.1 * needed + SLACK, (ranks, needed, peaks)
    assert max(peaks[2]) < 0.65 * peaks[1][0], peaks
    assert max(peaks[4]) < 0.45 * peaks[1][0], peaks


def _peaks(folder: Path, volume: Path, ranks: int) -> list[int]:
    """Bytes that each rank took at most, beyond what it had with torch and its process group."""
    command = [sys.executable, "-m", MEASURED, str(folder), str(volume), str(ranks)]
    settings = {
        # Otherwise malloc keeps what was freed, and a rank's memory says nothing of what it holds.
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_ARENA_MAX": "1",
        # Products for wider registers keep tens of megabytes of code and scratch, of any model.
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=ROOT, env={**os.environ, **settings}
    )
    assert done.returncode == 0, done.stderr
    peaks: list[int] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def test_a_model_that_was_read_whole_by_one_of_several_ranks_is_refused(model_folder) -> None:
    """As by a release of transformers that reads another way: gradients of whole models are never added up."""
    ranks = SimpleNamespace(mesh=object(), shard=lambda model: None)
    with pytest.raises(UnsupportedModel, match=r"transformers 5\..* is not split over the trainer's ranks"):
        load_shards(model_folder, read_config(model_folder), torch.float32, "cpu", ranks)  # type: ignore[arg-type]


def test_settings_know_the_longest_sequence_and_the_largest_step() -> None:
    spec = RLJob.model_validate(yaml.safe_load((EXAMPLES / "minimal.yaml").read_text())).spec
    settings = TrainerSettings.from_spec(spec, volume=Path("/v"), cache_folder=Path("/c"))
    data, algorithm = spec.data, spec.algorithm
    assert settings.longest == data.max_prompt_tokens + data.max_response_tokens
    group = data.max_prompt_tokens + algorithm.responses_per_prompt * data.max_response_tokens
    assert settings.step_tokens == algorithm.prompts_per_round * group
    assert settings.early is False
