"""When a coordinator that does not renew its Lease counts as silent: a row for each case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_operator.policies.base.observation import Silence
from rljob_operator.policies.failure.coordinator_leases import ObservedLease, merged

NEW = ObservedLease(version=7, renewed="10:00", holder="demo-coordinator-0-1", duration=15.0)
SEEN = replace(NEW, renewing=True)
"""It was seen to renew."""


@pytest.mark.parametrize(
    ("lease", "unchanged", "doubtful", "silent_for"),
    [
        pytest.param(SEEN, 0.0, False, None, id="just renewed"),
        pytest.param(SEEN, 15.0, False, None, id="unchanged for its duration"),
        pytest.param(SEEN, 15.5, True, 0.5, id="unchanged for longer"),
        pytest.param(NEW, 15.5, True, None, id="an outage may have come before it"),
        pytest.param(NEW, 45.0, True, None, id="three durations to return"),
        pytest.param(NEW, 46.0, True, 1.0, id="it has not returned"),
        pytest.param(replace(SEEN, holder=""), 60.0, False, None, id="a Lease that is held by none"),
    ],
)
def test_a_coordinator_is_silent_after_its_duration_or_three(
    lease: ObservedLease, unchanged: float, doubtful: bool, silent_for: float | None
) -> None:
    looks = replace(lease, unchanged=unchanged)
    confirmed = replace(looks, confirmed=True)
    assert (looks.doubtful, looks.silence) == (doubtful, None), "a cache alone makes no coordinator silent"
    assert confirmed.silence == (None if silent_for is None else Silence(lease.holder, silent_for))


@pytest.mark.parametrize(
    ("read", "found"),
    [
        pytest.param(NEW, replace(SEEN, unchanged=8.0, confirmed=True), id="unchanged"),
        pytest.param(
            replace(NEW, version=9), replace(SEEN, version=9, unchanged=8.0, confirmed=True), id="labelled only"
        ),
        pytest.param(
            replace(NEW, version=6, renewed="9:59"), replace(SEEN, unchanged=8.0, confirmed=True), id="a stale cache"
        ),
        pytest.param(replace(NEW, version=8, renewed="10:05"), replace(SEEN, version=8, renewed="10:05"), id="renewed"),
        pytest.param(replace(NEW, version=8, holder="b"), replace(SEEN, version=8, holder="b"), id="another holder"),
    ],
)
def test_a_lease_counts_as_renewed_if_a_newer_state_differs(read: ObservedLease, found: ObservedLease) -> None:
    assert merged(replace(SEEN, unchanged=3.0, confirmed=True), read, 5.0) == found


def test_a_lease_that_is_read_for_the_first_time_is_new() -> None:
    assert merged(None, NEW, 5.0) == NEW
