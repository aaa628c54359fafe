"""The roofline against what the papers print."""

import statistics

import pytest

from rljob_runtime.perf_model.calibration import ANCHORS


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor.source)
def test_each_printed_latency_is_met_within_its_bound(anchor):
    assert abs(anchor.error) <= anchor.within


def test_half_within_six_percent_and_no_family_biased_by_fifteen():
    """What docs/internals/simulator/performance-model.md says of the table as a whole."""
    assert statistics.median(abs(anchor.error) for anchor in ANCHORS) < 0.06
    for family in {anchor.achieved for anchor in ANCHORS}:
        errors = [anchor.error for anchor in ANCHORS if anchor.achieved == family and not anchor.prefill]
        assert abs(statistics.mean(errors)) < 0.15
