"""A loaned machine's gradient unit on a GPU: weights out of the relay's memory, the trainer's sums, memory given back.

A unit of several GPUs has not run: a machine with one has a unit of one rank, whose weights and sums are split over it
alone, by the same collectives.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rljob_runtime.rollout.engines.rank_processes import ForkServer
from rljob_runtime.training.loans.worker import PEER, BlockingGradientWorker
from rljob_runtime.training.loans.worker_rank import GradientRank
from tests.support.training.loan_site import VERSION, Site
from tests.support.training.toys import FakePublisher, LoneRank, make_groups


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="test-gpu-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    """As its actor makes it: Ray gives that one no GPU, and the ranks see what their unit has adopted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        made = ForkServer(PEER)
    yield made
    made.close()


class GpuSite(Site):
    """Trainer and units on the GPU."""

    device = "cuda"

    def worker(self, name: str, ranks: int = 1, **sender: object) -> BlockingGradientWorker:
        unit = super().worker(name, ranks, **sender)
        unit.adopt([str(number) for number in range(ranks)])
        return unit


@pytest.fixture(autouse=True)
def trainers_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.training import loan_site

    plain = loan_site.settings_of
    monkeypatch.setattr(loan_site, "settings_of", lambda *a, **k: replace(plain(*a, **k), device="cuda"))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_update_is_that_of_the_trainer_alone(memory, larger_folder, tmp_path, fork_server, dtype) -> None:
    """Norms compute in fp32 in both, so that float64 differs by what the order of rows makes of that."""
    site = GpuSite(memory, larger_folder, tmp_path, fork_server, dtype=dtype, max_tokens_per_microbatch=60)
    groups = make_groups(seed=5, count=6)
    unit = site.worker("rollout-1")
    for place in (0, 2):
        report = unit.compute(1, 1, VERSION, groups[place : place + 2])
        assert report.shares == (report.tokens,)
    receipt = site.deliver(unit)
    assert site.trainer.accept(1, receipt, groups[:4]).groups == 4
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


def free() -> int:
    """Return the free bytes of the GPU, over all processes."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def test_what_it_took_is_free_after_a_release(memory, larger_folder, tmp_path, fork_server) -> None:
    """Of all processes: what CUDA itself and NCCL had is free too."""
    site = GpuSite(memory, larger_folder, tmp_path, fork_server, dtype="bfloat16")
    unit = site.worker("rollout-1")
    for _ in range(2):  # and it can be loaned again
        before = free()
        unit.compute(1, 1, VERSION, make_groups(seed=5, count=3))
        assert before - free() > 64 << 20, "a context alone is more"
        unit.release(1)
        deadline = time.monotonic() + 10.0
        while (left := before - free()) > 8 << 20 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left <= 8 << 20
    site.close()


def test_weights_are_kept_as_they_are_published_and_no_second_gradient(
    memory, larger_folder, tmp_path, fork_server, monkeypatch
) -> None:
    """In this process, whose allocations can be looked at."""
    site = GpuSite(memory, larger_folder, tmp_path, fork_server, dtype="bfloat16")
    unit = site.worker("rollout-1")
    rank = GradientRank()
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, os.environ.get(name, "lo"))
    gc.collect()
    before = torch.cuda.memory_allocated()
    vocabulary = rank.build(unit._settings, 0, str(tmp_path / "meeting"))
    try:
        rank.begin(VERSION)
        parameters = sum(parameter.numel() for parameter in rank._computer.parameters.values())
        assert {parameter.dtype for parameter in rank._computer.parameters.values()} == {torch.bfloat16}
        held = torch.cuda.memory_allocated() - before
        # Two bytes a weight and four a sum; what is padded and cached comes on top.
        assert 6 * parameters <= held <= 7 * parameters
        _, (share,) = unit._plan(1, make_groups(seed=5, count=3), vocabulary)
        rank.add(share)
        torch.cuda.synchronize()
        assert all(parameter.grad is None for parameter in rank._computer.parameters.values())
        assert sum(float(total.to_local().abs().sum()) for total in rank._computer.sums.values()) > 0
    finally:
        rank.close()
    site.close()


def test_a_unit_computes_on_the_accelerators_that_it_adopts(memory, larger_folder, tmp_path, fork_server) -> None:
    """One that is not there is found when the ranks are made; nothing that makes the unit looks for devices before."""
    from rljob_runtime.protocols import Refused

    site = GpuSite(memory, larger_folder, tmp_path, fork_server, dtype="bfloat16")
    unit = site.worker("rollout-1")
    unit.adopt(["63"])
    with pytest.raises(Refused, match="has lost its sums"):
        unit.compute(1, 1, VERSION, make_groups(seed=5, count=1))
    unit.adopt(["0"])
    assert unit.compute(1, 1, VERSION, make_groups(seed=5, count=1)).groups == 1
    site.close()
