"""The plans of a round: which ones there are, and what a selected one says."""

import pytest

from rljob_runtime.scheduling.round_planner.plans import CandidatePlans, Plan, SelectedPlan, candidate_plans
from rljob_runtime.scheduling.tail_batching import Factors


@pytest.mark.parametrize(
    ("given_", "reference", "count"),
    [
        ((False, None, None, False), Plan(), 1),
        ((True, 1.1, 1.3, True), Plan(Factors(1.1, 1.3), stream=True), 1),
        ((True, 1.0, 1.0, False), Plan(Factors(1, 1)), 1),
        ((True, None, 1.0, False), Plan(Factors(1.25, 1)), 2),
        ((True, None, None, None), Plan(Factors(1.25, 1.25)), 16),
        ((None, 1.5, 1.5, False), Plan(), 2),
        ((None, 1.0, 1.0, False), Plan(), 1),
        ((None, None, None, None), Plan(), 18),
        ((False, None, None, None), Plan(), 2),
    ],
)
def test_what_is_left_open_is_chosen_from(given_, reference, count):
    found = candidate_plans(*given_)
    assert found.reference == reference
    assert len(set(found.plans)) == len(found.plans) == count
    assert found.is_undecided == (count > 1)


@pytest.mark.parametrize("plan", [Plan(), Plan(Factors(1.25, 1), stream=True)])
@pytest.mark.parametrize("figures", [(None, None), (41.5, 2.0, 90.0), (41.5, 2.0, 90.0, ((1, 41.5), (2, 30.0)))])
def test_what_is_chosen_reads_back(plan, figures):
    chosen = SelectedPlan(plan, "why", *figures)
    assert SelectedPlan.from_json(chosen.to_json()) == chosen


def test_a_plan_that_cannot_be_launched_is_none():
    assert candidate_plans(None, None, None, False, fits=lambda factors: False) == CandidatePlans((Plan(),))
