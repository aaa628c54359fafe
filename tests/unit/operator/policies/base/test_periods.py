"""When the operator acts without an event: a row for each decision."""

from __future__ import annotations

import pytest

from rljob_api.constants import COORDINATOR_LEASE_SECONDS
from rljob_operator.__main__ import parser
from rljob_operator.policies.base import periods
from rljob_operator.policies.base.config import Config
from rljob_runtime.coordinator.control_plane.lease import DURATION


@pytest.mark.parametrize(("unchanged", "silent"), [(0.0, False), (14.9, False), (15.0, True), (600.0, True)])
def test_a_kubelet_is_silent_after_one_missed_renewal(unchanged: float, silent: bool) -> None:
    assert periods.is_silent(unchanged) is silent


@pytest.mark.parametrize(("again", "seconds"), [(None, 15.0), (3.0, 3.0), (15.0, 15.0), (900.0, 15.0)])
def test_a_refused_plan_is_tried_again_soon(again: float | None, seconds: float) -> None:
    assert periods.after_refusal(again) == seconds


@pytest.mark.parametrize(
    ("first", "period", "seconds"), [(True, 300.0, 10.0), (False, 300.0, 300.0), (True, 4.0, 4.0), (False, 4.0, 4.0)]
)
def test_a_leaders_second_resync_comes_early(first: bool, period: float, seconds: float) -> None:
    assert periods.resync_pause(first, period) == seconds


@pytest.mark.parametrize(
    ("jobs", "period", "seconds"), [(0, 300.0, 0.0), (100, 300.0, 5.0), (10_000, 300.0, 150.0), (100, 4.0, 2.0)]
)
def test_a_resync_spreads_its_jobs_over_at_most_half_of_the_period(jobs: int, period: float, seconds: float) -> None:
    assert periods.resync_spread(jobs, period) == seconds


def test_a_coordinators_lease_has_one_default_duration() -> None:
    option = int(parser({}).get_default("coordinator_lease_seconds"))
    assert option == Config().coordinator_lease_seconds == DURATION == COORDINATOR_LEASE_SECONDS == 15
