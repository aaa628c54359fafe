"""A local run ends when a process of its environments cannot work."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from rljob_api import RLJob
from rljob_runtime.local import ProcessFailed
from rljob_runtime.local import run as local_run
from rljob_runtime.local.blocking import Interrupt
from rljob_runtime.ray_backend.actors import ActorPlacement
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "minimal.yaml"


class StandInEnvironments:
    """`LocalEnvironments` without processes, which fail when `broken` is set."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()
        self.served: list[Any] = []

    async def failed(self) -> None:
        await self.broken.wait()
        raise ProcessFailed("the gateway ended with status 2")

    def serve(self, turns: Any, environments: Any) -> str:
        self.served.append((turns, environments))
        return "served"

    def observe(self, *_: Any) -> None: ...


async def run(tmp_path, monkeypatch, play: Any, local: StandInEnvironments) -> Any:
    module = __import__("rljob_runtime.local.run", fromlist=["play"])
    assert local_run is module.run
    monkeypatch.setattr(module, "run_job", play)
    monkeypatch.setattr(module, "LazyRewards", lambda spec: None)
    monkeypatch.setattr(module, "LocalEnvironments", lambda job, places: local)
    job = RLJob.model_validate(yaml.safe_load(EXAMPLE.read_text()))
    placement = ActorPlacement(tmp_path, tmp_path, tmp_path, tmp_path, tmp_path / "key")
    node = SimpleNamespace(ended=asyncio.Event().wait)
    return await module._run(job, placement, node, module._Callbacks(), Interrupt(), tmp_path)


async def test_a_process_that_cannot_work_ends_the_job_with_its_reason(tmp_path, monkeypatch):
    local, ended, book = StandInEnvironments(), asyncio.Event(), SimpleNamespace(turns="turns", runners="runners")

    async def play(*_: Any, observers: Any, serve_episodes: Any, **__: Any) -> None:
        assert local.observe in observers
        assert serve_episodes(book) == "served"
        local.broken.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ProcessFailed, match="status 2"):
        await run(tmp_path, monkeypatch, play, local)
    assert ended.is_set(), "the coordinator ended with it"
    assert local.served == [("turns", "runners")]


async def test_a_job_that_ends_does_not_wait_for_its_processes(tmp_path, monkeypatch):
    async def play(*_: Any, **__: Any) -> None:
        return

    async with asyncio.timeout(30):
        await run(tmp_path, monkeypatch, play, StandInEnvironments())
