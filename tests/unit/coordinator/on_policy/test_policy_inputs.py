"""What loans and switches are decided from does not depend on which coordinator measured it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import Finished, FinishedOutcome
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision
from rljob_runtime.scheduling.layouts.layout_switch import SwitchLook
from rljob_runtime.scheduling.lending.gain import LoanMeasurements
from rljob_runtime.scheduling.lending.policy import LoanRules
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.peers.cluster import ClusterSpec, SimulatedCluster
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from tests.support.forced_switches import Script
from tests.support.simulated_job import Stage, job, until

RATES = ("training", "with_loan", "loaned", "transfer")
ROUNDS = 3
SIZES = {"slotsPerMachine": 1, "engine": "Reference", "machines": 2}
RACE = {"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}
CHANGES: Mapping[str, Any] = {"lending": LoanRules(0.2, 0.8, 0.05), "stream_tokens": 80}


@dataclass
class Inputs(Script):
    """Never switches, and keeps what the first look of the last round had from earlier rounds."""

    stage: Stage
    found: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(None)

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        coordinator = self.stage.coordinator
        assert coordinator is not None
        loop: Any = coordinator.loop
        if loop.generation.round.plan.step == ROUNDS and not self.found:
            measured: LoanMeasurements = loop._measured
            rates = {name: getattr(measured, name).seconds for name in RATES}
            lengths = sorted((one.tokens, one.ended) for one in measured.lengths)
            self.found.append({"lengths": lengths, "costs": loop._switch_costs.to_json(), **rates})
        return {}


def inputs(path: Path, restarts: bool, tail: dict[str, Any]) -> dict[str, object]:
    """Return what the last of three rounds is decided from."""
    of = job(ROUNDS, 6, 2, rollout={**SIZES, "allowedTensorParallelSizes": [1]}, tail=tail, stream=True)
    stage = Stage(path, job=of)
    stage.world = SimulatedCluster(
        0,
        ClusterSpec(1, lendable=True),
        TrainerCosts(step=0.2, token=0.05, loaned_token=0.05, bring=0.1),
        stage.observe,
    )
    policy = stage.switch_policy = Inputs(stage)
    changes = {**CHANGES, "tensor_parallel_sizes": (1, 2)}

    async def lives() -> Finished | None:
        first = asyncio.create_task(stage.coordinate(**changes))
        if restarts:
            await until(lambda: ROUNDS - 1 in stage.rounds, tick=0.001)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            return await stage.coordinate(**changes)
        return await first

    finished = virtual_time.run(lives())
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    (found,) = policy.found
    return found


@pytest.mark.parametrize("tail", [{}, RACE], ids=["plain", "race"])
def test_a_restarted_coordinator_decides_from_the_same(tmp_path: Path, tail: dict[str, Any]) -> None:
    same = inputs(tmp_path / "same.db", False, tail)
    restarted = inputs(tmp_path / "restarted.db", True, tail)
    assert same["lengths"]
    assert None not in same.values(), "all is measured"
    assert restarted == same
