"""Drawn jobs whose machines switch by the policy: it decides for itself, and some of its decisions are switches."""

from __future__ import annotations

import pytest

from rljob_api.status import LayoutSwitchesReport
from rljob_runtime.simulator.core.events import Event, Reported
from rljob_runtime.simulator.drawn_scenario import draw_switching, plan_of
from rljob_runtime.simulator.faults.plan import FaultPlan
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
