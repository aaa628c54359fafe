"""An unforeseen error of an optional policy: the round goes on without its decision, and the job tells of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import FinishedOutcome, StatusWarning
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.coordinator.on_policy import plan_next_round
from rljob_runtime.coordinator.on_policy.round_responses import RoundResponses
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.reporting.policy_failures import PROBLEM, OptionalPolicy, PolicyFailures
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.fault_detection.failing_policies import MOST_FAILURES
from rljob_runtime.scheduling.layouts.layout_switch import SwitchLook
from tests.support.simulated_job import Stage, job

SIZES = {"slotsPerMachine": 4, "allowedTensorParallelSizes": [1, 2, 4], "engine": "Reference", "machines": 2}


class Failing:
    """A switch policy that fails at one of its calls."""

    def __init__(self, call: str) -> None:
        self._call = call
        self.calls = 0
        self._looked = 0.0

    def _reach(self, call: str) -> None:
        if call == self._call:
            self.calls += 1
            raise ZeroDivisionError(f"in {call}")

    def begin_round(self) -> None:
        self._reach("begin_round")

    def is_due(self, done: int, total: int, now: float) -> bool:
        self._reach("is_due")
        due = now - self._looked > 0.1
        self._looked = now if due else self._looked
        return due

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        self._reach("decide")
        self.calls += self._call in ("another size", "another machine")
        target = 3 if self._call == "another size" else 2
        name = "rollout-9" if self._call == "another machine" else look.machines[0].name
        return {name: SwitchDecision(SwitchOutcome.SWITCHED, target)}


class Run:
    """A job whose optional policies may fail."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        rounds = spec.pop("rounds", MOST_FAILURES + 2)
        spec = {"rollout": SIZES, "adaptiveTensorParallel": {"enabled": True}, **spec}
        self.stage = Stage(folder / "state.db", job(rounds=rounds, prompts=6, responses=4, **spec), replicas=4)
        self.stage.sizes = (1, 2, 4)
        self.stage.__post_init__()
        self.stage.invariants.policies_fail = True
        self.metrics = CoordinatorMetrics()
        self.stage.observers.append(self.metrics.round)

    def play(self, **changes: Any) -> list[StatusWarning]:
        """Play the job to its end; return the last warnings."""
        result = self.stage.play(**changes)
        assert result is not None
        assert result.outcome is FinishedOutcome.COMPLETE
        ids = self.stage.trained_ids()
        assert len(ids) == len(set(ids)) == len(self.stage.closed) * 6 * 4
        assert self.stage.control is not None
        return [one for one in self.stage.control.reports[-1].warnings if one.reason == PROBLEM]


@pytest.mark.parametrize("call", ["begin_round", "is_due", "decide", "another size", "another machine"])
def test_a_failing_switch_policy_is_given_up_and_the_job_completes(tmp_path: Path, call: str) -> None:
    run = Run(tmp_path)
    run.stage.switch_policy = policy = Failing(call)
    (warning,) = run.play()
    assert "layout switches failed" in warning.message
    assert "not asked again" in warning.message
    assert policy.calls == MOST_FAILURES, "once a round, and not for ever"
    told = [(one.layout_switches.reason, one.layout_switches.made) for one in run.stage.closed if one.layout_switches]
    assert told == [("PolicyFailed", 0)] * (MOST_FAILURES + 2)
    counted = run.metrics.registry.get_sample_value(
        "rljob_coordinator_rounds_without_layout_switch_total", {"reason": "PolicyFailed"}
    )
    assert counted == len(told)


def test_a_round_that_cannot_be_described_has_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise KeyError("no such response")

    monkeypatch.setattr(RoundResponses, "snapshot", fails)
    run = Run(tmp_path)
    (warning,) = run.play()
    assert "KeyError" in warning.message
    assert {one.layout_switches.reason for one in run.stage.closed if one.layout_switches} == {"PolicyFailed"}


def test_a_planner_that_fails_leaves_the_reference_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ArithmeticError("no plan")

    monkeypatch.setattr(plan_next_round, "round_inputs", fails)
    run = Run(tmp_path, rollout={"machines": 2}, adaptiveTensorParallel={}, tail={"enabled": "Auto"})
    (warning,) = run.play()
    assert "round plans failed: ArithmeticError: no plan" in warning.message
    assert {(one.plan, one.plan_reason) for one in run.stage.closed} == {("plain", plan_next_round.FAILED)}


def test_the_warning_ends_when_the_policy_decides(tmp_path: Path) -> None:
    class Once(Failing):
        def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
            self.calls += 1
            if self.calls == 1:
                raise ValueError
            return {}

    run = Run(tmp_path, rounds=2)
    run.stage.switch_policy = policy = Once("nowhere")
    assert run.play() == []
    assert policy.calls > 1
    assert run.stage.control is not None
    assert any(one.reason == PROBLEM for report in run.stage.control.reports for one in report.warnings)


def test_errors_of_the_pool_are_no_failures_of_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object) -> None:
        raise RuntimeError("the pool is broken")

    monkeypatch.setattr(ReplicaPool, "observed", fails)
    with pytest.raises(RuntimeError, match="the pool is broken"):
        Run(tmp_path).stage.play()


def test_each_policy_has_its_own_sentence() -> None:
    told: list[StatusWarning | None] = []
    failures = PolicyFailures(lambda reason, warning: told.append(warning))
    for _ in range(MOST_FAILURES):
        failures.failed(OptionalPolicy.LOANS, ValueError("one"))
    failures.failed(OptionalPolicy.REPACK, ValueError("two"))
    failures.decided(OptionalPolicy.LOANS)
    failures.decided(OptionalPolicy.REPACK)
    (_, _, loans, both, repack, nothing) = told
    assert loans is not None
    assert both is not None
    assert repack is not None
    assert both.message == (
        "the policy of loans of rollout machines failed: ValueError: one. It is not asked again before the coordinator"
        " restarts. the policy of repack failed: ValueError: two. It is asked again later. The job goes on without its"
        " decision. Report the traceback in the log"
    )
    assert "two" not in loans.message
    assert "one" not in repack.message
    assert nothing is None
    assert failures.is_asked(OptionalPolicy.LOANS)
