"""Metrics of the status: what is over is not shown any more."""

from rljob_api.status import RelayTopology, RuntimeStatus, StatusWarning
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics


def warnings(metrics: CoordinatorMetrics) -> dict[str, float]:
    (family,) = [one for one in metrics.registry.collect() if one.name == "rljob_coordinator_warning"]
    return {sample.labels["reason"]: sample.value for sample in family.samples}


def test_a_warning_is_shown_until_it_is_over():
    metrics = CoordinatorMetrics()
    told = [StatusWarning(reason=reason, message="…") for reason in ("StoreSlow", "CheckpointFailed")]
    metrics.status(RuntimeStatus(warnings=tuple(told), relay=RelayTopology(revision=3), generating=("a", "b")))
    assert warnings(metrics) == {"StoreSlow": 1.0, "CheckpointFailed": 1.0}
    read = metrics.registry.get_sample_value
    assert read("rljob_coordinator_relay_revision") == 3
    assert read("rljob_coordinator_generating_machines") == 2
    metrics.status(RuntimeStatus(warnings=tuple(told[:1])))
    assert warnings(metrics) == {"StoreSlow": 1.0}
