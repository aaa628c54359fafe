"""Drawn jobs whose machines switch by the policy: it decides for itself, and some of its decisions are switches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_api.status import LayoutSwitchesReport
from rljob_runtime.simulator.core.events import Event, LaidOut, Reported
from rljob_runtime.simulator.drawn_scenario import draw_switching, plan_of
from rljob_runtime.simulator.faults.plan import Fault, FaultPlan, FaultType
from rljob_runtime.simulator.run import simulate
from rljob_runtime.simulator.scenario import Scenario
from tests.support.rows import slow


def switches_of(scenario: Scenario, plan: FaultPlan) -> list[LayoutSwitchesReport]:
    """Play a job; return what each of its rounds reports of switches."""
    reports: dict[int, LayoutSwitchesReport] = {}

    def observe(event: Event) -> None:
        if isinstance(event, Reported) and (report := event.status.last_round) is not None and report.layout_switches:
            reports[report.round] = report.layout_switches

    outcome = simulate(scenario, plan, [observe])
    assert outcome.passed, f"seed {scenario.seed}: {outcome.violation} under {plan}"
    return list(reports.values())


@pytest.mark.parametrize("seeds", [range(20, 30), *slow(range(20), range(30, 60), range(60, 90))], ids=str)
def test_the_policy_decides_in_a_fair_share_of_the_jobs_to_switch(seeds: range) -> None:
    jobs = [scenario for scenario in map(draw_switching, seeds) if scenario.profiles]
    found = [switches_of(scenario, FaultPlan()) for scenario in jobs]
    assert all(not scenario.switches and reports for scenario, reports in zip(jobs, found, strict=True))
    made = [one for reports in found for report in reports for one in report.switches]
    assert all(one.predicted_gain_seconds for one in made), "the policy predicts what a switch gains"
    switching = sum(any(report.made for report in reports) for reports in found)
    assert switching >= len(jobs) / 8 > 0


@pytest.mark.slow
def test_the_policy_decides_under_faults() -> None:
    jobs = [scenario for scenario in map(draw_switching, range(60)) if scenario.profiles]
    found = [report.made for scenario in jobs for report in switches_of(scenario, plan_of(scenario))]
    assert sum(found) > 0


def sizes_of(scenario: Scenario, plan: FaultPlan, machine: str) -> dict[str, set[int]]:
    """Play a job; return the sizes that each replica of a machine had."""
    sizes: dict[str, set[int]] = {}

    def observe(event: Event) -> None:
        if isinstance(event, LaidOut) and event.replica.startswith(f"{machine}/"):
            sizes.setdefault(event.replica, set()).add(event.tensor_parallel)

    outcome = simulate(scenario, plan, [observe])
    assert outcome.passed, f"seed {scenario.seed}: {outcome.violation} under {plan}"
    return sizes


def test_a_refused_size_is_never_reached_and_breaks_no_invariant() -> None:
    """A replica refuses all sizes but the first for the whole job, and another one of its machine does not."""
    jobs = (scenario for scenario in map(draw_switching, range(100)) if scenario.switches and not scenario.edit)
    drawn = next(scenario for scenario in jobs if scenario.machines == 2 and scenario.site.replicas == 4)
    scenario, first = replace(drawn, random_layout_changes=False), drawn.site.tensor_parallel
    refused = FaultPlan((Fault(0.0, FaultType.LAYOUT_REFUSED, "rollout-0/replica-0", 10_000.0),))
    free, hindered = (sizes_of(scenario, plan, "rollout-0") for plan in (FaultPlan(), refused))
    assert free["rollout-0/replica-0"] > {first} == hindered["rollout-0/replica-0"]
    assert hindered["rollout-0/replica-2"] == {first, 2}, "the machine tried size 2, and went back"
