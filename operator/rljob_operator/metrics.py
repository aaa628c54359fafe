"""Operator metrics: what the operator tells Prometheus.

Each instance has its own registry, so that one test process can hold several operators.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters and histograms that benchmarks and alerts read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        reg = self.registry
        self.api_requests = Counter(
            "rljob_operator_api_requests", "Requests to the API server.", ["verb", "resource", "code"], registry=reg
        )
        self.api_seconds = Histogram(
            "rljob_operator_api_request_seconds", "Duration of one request.", ["verb"], buckets=_SECONDS, registry=reg
        )
        self.api_retries = Counter(
            "rljob_operator_api_retries", "Requests sent again after a failure.", ["reason"], registry=reg
        )
        self.reconciles = Counter("rljob_operator_reconciles", "Finished reconciles.", ["result"], registry=reg)
        self.reconcile_seconds = Histogram(
            "rljob_operator_reconcile_seconds", "Duration of one reconcile.", buckets=_SECONDS, registry=reg
        )
        self.queue_depth = Gauge("rljob_operator_queue_depth", "Jobs that wait for a worker.", registry=reg)
        self.queue_oldest = Gauge(
            "rljob_operator_queue_oldest_seconds", "Age of the oldest due entry of the queue.", registry=reg
        )
        self.events_seen = Counter(
            "rljob_operator_watch_events", "Watch events by relevance.", ["resource", "relevant"], registry=reg
        )
        self.resync_age = Gauge(
            "rljob_operator_resync_age_seconds", "Time since the last complete resync.", registry=reg
        )
        self.leader = Gauge("rljob_operator_leader", "1 while this process holds the leader's Lease.", registry=reg)
        self.jobs = Gauge("rljob_jobs", "RLJobs known, by phase.", ["phase"], registry=reg)
        self.forced = Counter(
            "rljob_force_deleted_pods", "Pods of dead nodes that were deleted by force.", registry=reg
        )
        self.replacements = Counter(
            "rljob_replacements", "Machines replaced, by reason.", ["role", "reason"], registry=reg
        )
        self.recovery_seconds = Histogram(
            "rljob_replacement_seconds",
            "From the event that showed a pod's loss to the replacement's creation.",
            buckets=_SECONDS,
            registry=reg,
        )

    def observe_request(self, verb: str, plural: str, code: str, seconds: float) -> None:
        """Count a request to the API server, with its duration."""
        self.api_requests.labels(verb, plural, code).inc()
        self.api_seconds.labels(verb).observe(seconds)

    def observe_retry(self, code: str) -> None:
        """Count a request that is sent again."""
        self.api_retries.labels(code).inc()

    def render(self) -> bytes:
        """Render the exposition text."""
        return generate_latest(self.registry)
