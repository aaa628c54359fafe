"""Switches inside rounds are counted in Prometheus, and are numbers for observers."""

from __future__ import annotations

from rljob_api.status import LayoutSwitchesReport, RecomputedResponses, RoundReport, SwitchesState
from rljob_runtime.coordinator.reporting.layout_stats import LayoutStats, VisitTotals
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.observers.round_metrics import round_metrics
from rljob_runtime.protocols import TrainReport
from rljob_runtime.scheduling.adaptive_tp.kv_drops import KvDropTotals

TRAINED = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0)
SWITCHED = RoundReport(
    round=1,
    layout_switches=LayoutSwitchesReport(
        state=SwitchesState.SWITCHED,
        made=20,
        failed=2,
        responses=64,
        seconds=7.5,
        kv_bytes=4096,
        switches=(),
        recomputed=(RecomputedResponses(reason="NoRoom", responses=9),),
        predicted_gain_seconds=4.5,
        gain_seconds=-1.5,
    ),
)
NOT_SWITCHED = RoundReport(
    round=2,
    layout_switches=LayoutSwitchesReport(
        state=SwitchesState.NOT_SWITCHED, reason="NoGain", made=0, failed=1, responses=3, seconds=0.5
    ),
)


def test_switches_are_counted_over_rounds() -> None:
    metrics = CoordinatorMetrics()
    for report in (SWITCHED, SWITCHED, NOT_SWITCHED, NOT_SWITCHED, RoundReport(round=3)):
        metrics.round(report, TRAINED)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"rljob_coordinator_{name}_total", labels)

    assert (value("layout_switches", outcome="reached"), value("layout_switches", outcome="failed")) == (40, 6)
    assert (value("layout_switch_responses"), value("layout_switch_seconds")) == (134, 16)
    assert value("layout_switch_kv_bytes") == 8192
    assert value("layout_switch_recomputed_responses", reason="NoRoom") == 18
    gains = ("layout_switch_predicted_gain_seconds", "layout_switch_gain_seconds")
    assert [metrics.registry.get_sample_value(f"rljob_coordinator_{name}") for name in gains] == [9.0, -3.0]
    assert value("rounds_without_layout_switch", reason="NoGain") == 2
    assert value("rounds_without_layout_switch", reason="") is None


def test_observers_receive_their_sums() -> None:
    found = {name: value for name, value in round_metrics(SWITCHED, TRAINED).items() if "switches" in name}
    assert found == {
        "round/layout_switches_made": 20,
        "round/layout_switches_failed": 2,
        "round/layout_switches_responses": 64,
        "round/layout_switches_seconds": 7.5,
        "round/layout_switches_kv_bytes": 4096,
        "round/layout_switches_predicted_gain_seconds": 4.5,
        "round/layout_switches_gain_seconds": -1.5,
    }
    assert not any("switches" in name for name in round_metrics(RoundReport(round=3), TRAINED))


def test_kept_kv_files_and_visits_are_shown_as_they_are_at_the_scrape() -> None:
    metrics, stats = CoordinatorMetrics(), [LayoutStats()]
    metrics.watch_layouts(lambda: stats[0])
    names = {
        "kv_drops_total": 4, "kv_drop_failures_total": 3, "kv_drop_retries_total": 2, "kv_drops_abandoned_total": 1,
        "kv_kept_bytes": 4096, "layout_profiles_total": 6, "layout_profile_loads_total": 50,
        "layout_profile_seconds_total": 70.5, "layout_profile_delays_total": 5, "layout_profile_delay_seconds_total": 8,
        "layout_switch_wait_seconds_total": 0.25,
    }  # fmt: skip

    def values() -> dict[str, float | None]:
        return {name: metrics.registry.get_sample_value(f"rljob_coordinator_{name}") for name in names}

    assert set(values().values()) == {0.0}
    stats[0] = LayoutStats(KvDropTotals(4, 3, 2, 1), 4096, VisitTotals(6, 50, 70.5, 5, 8.0), 0.25)
    assert values() == names
