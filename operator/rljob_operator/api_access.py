"""API access: how the operator's parts reach the API server, with the events and the metrics that follow."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_kube.client import KubeClient
from rljob_kube.event_recorder import EventRecorder
from rljob_operator.metrics import Metrics


@dataclass(frozen=True)
class ApiAccess:
    """Client, recorder of events, and metrics of one process."""

    kube: KubeClient
    recorder: EventRecorder
    metrics: Metrics
