"""Sent traces: whether a job's observers export spans, as far as its spec and the SDK's variables say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OBSERVER = "opentelemetry"
TRACES_SETTING = "tracesEndpoint"
TRACES_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables of the OpenTelemetry SDK that name where spans go."""


def sends_traces(config: Mapping[str, Any], variables: Mapping[str, str]) -> bool:
    """Return whether the observer `opentelemetry` with these settings exports spans."""
    return bool(config.get(TRACES_SETTING) or any(variables.get(name) for name in TRACES_VARIABLES))


def traced_run(run: str, observers: Mapping[str, Mapping[str, Any]], variables: Mapping[str, str]) -> str | None:
    """Return `run` if spans of its episodes are exported, else None. `observers`: their settings by name."""
    config = observers.get(OBSERVER)
    return run if config is not None and sends_traces(config, variables) else None
