"""OpenTelemetry: metrics as gauges, events as log records, and episodes of samples as spans, sent by OTLP over HTTP.

`config`: `endpoint` of metrics, `eventsEndpoint` of logs and `tracesEndpoint` of spans (else the variables of the
OpenTelemetry SDK), `headers`, `attributes`. Spans are sent only if one of these names where. Names of the namespace
`rl` follow the proposal in semantic-conventions-genai; all other numbers have the prefix `rljob`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from rljob_runtime.observers.otel_spans import EpisodeIds, EpisodeSpans
from rljob_runtime.observers.protocol import JobEvent, ObservedJob
from rljob_runtime.observers.sent_traces import TRACES_SETTING, sends_traces

NAMES = {
    "round/seconds": "rl.loop.duration",
    "round/generation_seconds": "rl.sample.duration",
    "round/training_seconds": "rl.train.duration",
    "round/reward": "rl.reward.mean",
}
"""Metrics with a name in the proposal."""
EXPORT_SECONDS = 15.0


class OtelMetrics:
    """Exports the last round, events, and the episodes of samples."""

    def __init__(
        self,
        job: ObservedJob,
        config: Mapping[str, Any],
        reader: MetricReader | None = None,
        events: LogRecordExporter | None = None,
        spans: SpanExporter | None = None,
    ) -> None:
        """Create the exporters; they connect when they export. `reader`, `events`, `spans` replace them in a test."""
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
        resource = Resource.create(attributes)
        self._provider = MeterProvider([reader], resource=resource)
        if events is None:
            events = OTLPLogExporter(endpoint=config.get("eventsEndpoint"), headers=config.get("headers"))
        self._events = LoggerProvider(resource=resource)
        self._events.add_log_record_processor(BatchLogRecordProcessor(events))
        ids = EpisodeIds(job.uid or job.name)
        self._tracers = TracerProvider(resource=resource, id_generator=ids)
        if spans is None and sends_traces(config, os.environ):
            spans = OTLPSpanExporter(endpoint=config.get(TRACES_SETTING), headers=config.get("headers"))
        if spans is not None:
            self._tracers.add_span_processor(BatchSpanProcessor(spans))
        self._episodes = None if spans is None else EpisodeSpans(self._tracers.get_tracer("rljob"), job.name, ids)
        self._meter = self._provider.get_meter("rljob")
        self._last: dict[str, float] = {}
        self._known: set[str] = set()

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Replace the exported values of these names."""
        self._last |= {"rljob.round": float(number), **{named(name): value for name, value in metrics.items()}}
        for name in self._last.keys() - self._known:
            self._known.add(name)
            self._meter.create_observable_gauge(name, [self._reader_of(name)])

    def samples(self, number: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Export the episodes of a round's samples as spans."""
        if self._episodes is not None:
            self._episodes.export(number, records)

    def event(self, event: JobEvent) -> None:
        """Emit an event, as `rljob.MachineLost`."""
        self._events.get_logger("rljob").emit(
            event_name=f"rljob.{event.name}",
            body=event.message,
            timestamp=time.time_ns(),
            attributes={"rljob.round": event.round},
        )

    def close(self) -> None:
        """Export the last round and what waits."""
        self._provider.shutdown()
        self._events.shutdown()
        self._tracers.shutdown()

    def _reader_of(self, name: str) -> Any:
        def read(options: CallbackOptions) -> list[Observation]:
            return [Observation(self._last[name])] if name in self._last else []

        return read


def named(name: str) -> str:
    """Return the exported name of a metric."""
    return NAMES.get(name) or "rljob." + name.replace("/", ".")
