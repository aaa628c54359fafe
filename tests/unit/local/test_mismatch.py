"""`rljob run` ends, with the reason, where engine and trainer differ: no user is there to suspend or delete the job."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import yaml

from rljob_api import RLJob
from rljob_api.constants import ENGINE_MISMATCH
from rljob_api.status import CheckpointStatus, RuntimeStatus, StatusWarning
from rljob_runtime.cli.run.ending import INTERRUPTED, ending
from rljob_runtime.local import run as local_run
from rljob_runtime.local.blocking import Interrupt
from rljob_runtime.ray_backend.actors import ActorPlacement
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "minimal.yaml"


class Halted:
    """A coordinator that waits until it is stopped."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    def stop(self) -> None:
        self.stopped.set()


async def play_to_a_halt(job: Any, rewards: Any, control: Any, *_: Any, on_start: Any, **__: Any) -> None:
    coordinator = Halted()
    on_start(coordinator)
    await control.report(RuntimeStatus(warnings=(StatusWarning(reason="CheckpointFailed", message="full"),)))
    assert not coordinator.stopped.is_set()
    told = StatusWarning(reason=ENGINE_MISMATCH, message="their KL is 5.4 a token")
    await control.report(RuntimeStatus(warnings=(told,)))
    async with asyncio.timeout(60.0):
        await coordinator.stopped.wait()


async def test_a_local_run_ends_with_the_mismatch(tmp_path, monkeypatch) -> None:
    module = __import__("rljob_runtime.local.run", fromlist=["play"])
    assert local_run is module.run
    monkeypatch.setattr(module, "run_job", play_to_a_halt)
    monkeypatch.setattr(module, "LazyRewards", lambda spec: None)
    job = RLJob.model_validate(yaml.safe_load(EXAMPLE.read_text()))
    placement = ActorPlacement(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path / "key")
    node = SimpleNamespace(ended=asyncio.Event().wait)
    result = await module._run(job, placement, node, module._Callbacks(), Interrupt())
    end = ending(job, tmp_path, result, "rljob run job.yaml", 1)
    assert f"not complete ({ENGINE_MISMATCH}: their KL is 5.4 a token)" in end.line
    assert end.code == 1


def test_an_interrupted_run_tells_its_checkpoint_and_how_to_continue(tmp_path) -> None:
    job = RLJob.model_validate(yaml.safe_load(EXAMPLE.read_text()))
    saved = CheckpointStatus(round=3, name="step-00000003")
    end = ending(job, tmp_path, RuntimeStatus(round=3, checkpoint=saved), "rljob run job.yaml --set spec.rounds=9", 0)
    assert end.line == (
        f"minimal: interrupted after round 3 of {job.spec.rounds}; its last checkpoint is of round 3; "
        f"logs in {tmp_path}"
    )
    assert end.more == ("continue with: rljob run job.yaml --set spec.rounds=9",)
    assert end.code == INTERRUPTED
    assert "it has no checkpoint yet" in ending(job, tmp_path, RuntimeStatus(), "rljob run job.yaml", 0).line


def test_a_run_that_is_interrupted_before_it_continued_keeps_its_rounds(tmp_path) -> None:
    """No status has told of them yet: "after round 0, without a checkpoint" would be wrong."""
    job = RLJob.model_validate(yaml.safe_load(EXAMPLE.read_text()))
    first = ending(job, tmp_path, RuntimeStatus(), "rljob run job.yaml", 0)
    assert first.line.startswith(f"minimal: interrupted after round 0 of {job.spec.rounds}; it has no checkpoint yet")
    (tmp_path / "rounds.jsonl").write_text("{}\n")
    end = ending(job, tmp_path, RuntimeStatus(), "rljob run job.yaml", 0)
    assert (end.line, end.more, end.code) == (
        f"minimal: interrupted before it continued; rounds and checkpoints are as before; logs in {tmp_path}",
        ("continue with: rljob run job.yaml",),
        130,
    )


def test_a_run_that_began_again_tells_of_no_former_rounds(tmp_path) -> None:
    """Killed before its first checkpoint, it begins at round 0, and publishes weights."""
    job = RLJob.model_validate(yaml.safe_load(EXAMPLE.read_text()))
    (tmp_path / "rounds.jsonl").write_text("{}\n")
    end = ending(job, tmp_path, RuntimeStatus(weight_version=1), "rljob run job.yaml", 0)
    assert end.line.startswith("minimal: interrupted after round 0")
