"""OpenTelemetry: the metrics of the last round as gauges, sent by OTLP over HTTP.

`config`: `endpoint` (else the variables of the OpenTelemetry SDK), `headers`, `attributes`. Names of the namespace `rl`
follow the proposal in semantic-conventions-genai; all other numbers have the prefix `rljob`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from rljob_runtime.observers.protocol import ObservedJob

NAMES = {
    "round/seconds": "rl.loop.duration",
    "round/generation_seconds": "rl.sample.duration",
    "round/training_seconds": "rl.train.duration",
    "round/reward": "rl.reward.mean",
}
"""Metrics with a name in the proposal."""
EXPORT_SECONDS = 15.0


class OtelMetrics:
    """Exports the last round."""

    def __init__(self, job: ObservedJob, config: Mapping[str, Any], reader: MetricReader | None = None) -> None:
        """Create the exporter; it connects when it exports. `reader` replaces it in a test."""
        algorithm = (job.spec.get("algorithm") or {}).get("kind", "GRPO")
        attributes = {
            "service.name": "rljob",
            "rl.system": "rljob",
            "rl.run.id": job.uid or job.name,
            "rl.algorithm": algorithm,
            "rl.model.name": (job.spec.get("model") or {}).get("source", ""),
            "rljob.name": job.name,
            "rljob.namespace": job.namespace,
            **config.get("attributes", {}),
        }
        if reader is None:
            exporter = OTLPMetricExporter(endpoint=config.get("endpoint"), headers=config.get("headers"))
            reader = PeriodicExportingMetricReader(exporter, export_interval_millis=EXPORT_SECONDS * 1000)
        self._provider = MeterProvider([reader], resource=Resource.create(attributes))
        self._meter = self._provider.get_meter("rljob")
        self._last: dict[str, float] = {}
        self._known: set[str] = set()

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Replace the exported values."""
        self._last = {"rljob.round": float(number), **{named(name): value for name, value in metrics.items()}}
        for name in self._last.keys() - self._known:
            self._known.add(name)
            self._meter.create_observable_gauge(name, [self._reader_of(name)])

    def close(self) -> None:
        """Export the last round."""
        self._provider.shutdown()

    def _reader_of(self, name: str) -> Any:
        def read(options: CallbackOptions) -> list[Observation]:
            return [Observation(self._last[name])] if name in self._last else []

        return read


def named(name: str) -> str:
    """Return the exported name of a metric."""
    return NAMES.get(name) or "rljob." + name.replace("/", ".")
