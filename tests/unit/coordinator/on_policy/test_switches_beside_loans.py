"""Switches beside loans: machines that are not on loan change their size, and the loan goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision
from rljob_runtime.scheduling.layouts.layout_switch import SwitchLook
from rljob_runtime.scheduling.lending.policy import LoanRules
from rljob_runtime.simulator.core.events import LaidOut
from rljob_runtime.simulator.peers.cluster import SimulatedCluster
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from tests.support.forced_switches import Script
from tests.support.simulated_job import Stage, job

SLOW_TRAINER = TrainerCosts(step=0.2, token=0.05, loaned_token=0.05, bring=0.1)
ROUNDS = 5


class DuringALoan(Script):
    """Switches the only machine of a look: the other one is on loan."""

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        return super().decide(look) if len(look.machines) == 1 else {}


class Job:
    """Rounds of two machines. In one of them a machine is loaned, and the other one switches meanwhile."""

    def __init__(self, folder: Path, seconds: float = 0.3) -> None:
        rollout = {"slotsPerMachine": 2, "allowedTensorParallelSizes": [1, 2], "engine": "Reference", "machines": 2}
        spec = job(rounds=ROUNDS, prompts=6, stream=True, machines=2, rollout=rollout)
        self.stage = Stage(folder / "state.db", job=spec, replicas=2, sizes=(1, 2), machines=2)
        site = replace(self.stage.world.site, lendable=True, shares_accelerators=True, layout_seconds=seconds)
        self.stage.world = SimulatedCluster(0, site, SLOW_TRAINER, self.stage.observe)
        self.policy = self.stage.switch_policy = DuringALoan(None, 2, unfinished=1)
        self.events: list[object] = []
        self.stage.watchers.append(self.events.append)

    def play(self, *also) -> None:  # type: ignore[no-untyped-def]
        finished = self.stage.play(*also, lending=LoanRules(0.2, 0.8, 0.05), stream_tokens=80)
        assert finished is not None
        assert finished.outcome is FinishedOutcome.COMPLETE
        ids = self.stage.trained_ids()
        assert len(ids) == len(set(ids)) == ROUNDS * 6 * 2

    def switched(self) -> set[str]:
        """The machines that had size 2."""
        return {machine_of(one.replica) for one in self.events if isinstance(one, LaidOut) and one.tensor_parallel == 2}


@pytest.mark.parametrize("seconds", [0.3, 3.0], ids=["a fast switch", "a slow one"])
def test_a_machine_switches_beside_a_loan_and_the_loan_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    """No other machine generates meanwhile."""
    run = Job(tmp_path, seconds)
    run.play()
    (seen,) = run.policy.seen
    assert run.switched() == {seen.name}
    first, *later = run.stage.closed
    assert (first.loaned_machines, [one.loaned_machines for one in later]) == (0, [1] * 4)
    assert all(one.loaned_groups for one in later)
    assert "no other machine is left" not in caplog.text
