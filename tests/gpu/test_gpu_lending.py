"""A lent machine's worker on a GPU: weights out of the relay's memory, the trainer's sums, memory given back."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rank_process import KEY, RELAY
from test_training_lent import VERSION, Site
from training_toys import FakePublisher, LoneRank, make_groups

from rljob_runtime.relay.sums import Courier
from rljob_runtime.training.lent import LentSettings, LentWorker

SECONDS = 20.0


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="test-gpu-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


class GpuSite(Site):
    """Trainer and workers on the GPU."""

    def worker(self, name: str) -> LentWorker:
        settings = LentSettings(self.config, self.model, self.memory / "rollout", device="cuda")

        def courier() -> Courier:
            return Courier(self.memory / f"{name}-sums", KEY, RELAY, self.config.compute_dtype, SECONDS)

        return LentWorker(name, settings, courier)


@pytest.fixture(autouse=True)
def trainers_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import test_training_lent

    plain = test_training_lent.settings_of
    monkeypatch.setattr(test_training_lent, "settings_of", lambda *a, **k: replace(plain(*a, **k), device="cuda"))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_update_is_that_of_the_trainer_alone(memory, larger_folder, tmp_path, dtype) -> None:
    site = GpuSite(memory, larger_folder, tmp_path, dtype=dtype, max_tokens_per_microbatch=60)
    groups = make_groups(seed=5, count=6)
    worker = site.worker("rollout-1")
    for place in (0, 2):
        worker.compute(1, 1, VERSION, groups[place : place + 2])
    handover = site.hand_over(worker)
    assert site.trainer.accept(1, handover, groups[:4]).groups == 4
    report = site.trainer.train(1, 1, groups)
    assert report.early_groups == 4

    alone = LoneRank(replace(site.settings, checkpoint_folder=tmp_path / "alone"), FakePublisher)
    alone.start(1)
    wanted = alone.train(1, 1, groups)
    assert report.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-10 if dtype == "float64" else 1e-2)
    for name, weight in alone._started.optimizer.master.items():
        moved = (site.trainer._started.optimizer.master[name] - weight).detach().norm() / weight.detach().norm()
        assert float(moved) < (1e-9 if dtype == "float64" else 2e-2), name
    alone.close()
    site.close()


def test_what_it_took_is_free_after_a_release(memory, larger_folder, tmp_path) -> None:
    site = GpuSite(memory, larger_folder, tmp_path, dtype="bfloat16")
    worker = site.worker("rollout-1")
    for _ in range(2):  # and it can be lent again
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        worker.compute(1, 1, VERSION, make_groups(seed=5, count=3))
        parameters = sum(weight.numel() for weight in site.trainer._started.optimizer.compute.values())
        # Weights and sums, in full precision.
        assert torch.cuda.memory_allocated() - before[0] >= 8 * parameters
        worker.release(1)
        assert torch.cuda.memory_allocated() <= before[0]
        assert torch.cuda.memory_reserved() <= before[1]
    site.close()


ADOPTS = """
import asyncio, sys, torch
from rljob_runtime.coordinator.actors import WorkerPeer
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.lent import LentSettings, LentWorker

worker = LentWorker("w", LentSettings(TrainingConfig(), sys.argv[1], sys.argv[1], device="cuda"), lambda: None)
asyncio.run(WorkerPeer(worker).adopt(sys.argv[2:]))
print(torch.cuda.device_count(), end="")
"""


@pytest.mark.parametrize(("devices", "seen"), [(["0"], "1"), ([], "0")])
def test_a_worker_sees_the_accelerators_that_it_adopts(larger_folder, devices, seen) -> None:
    """Nothing that makes it looks for devices before."""
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", ADOPTS, str(larger_folder), *devices],
        capture_output=True, text=True, timeout=240, check=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.stdout.endswith(seen)
