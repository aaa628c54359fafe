"""The coordinator's Prometheus metrics, in a registry of their own. Names begin with `rljob_coordinator_`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rljob_api.status import RoundReport, RuntimeStatus
from rljob_runtime.coordinator.protocols import TrainReport

_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


class CoordinatorMetrics:
    """Counts rounds and what they cost; shows what the status says."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._rounds = Counter("rljob_coordinator_rounds", "Rounds closed.", ["kind"], registry=self.registry)
        self._tokens = Counter("rljob_coordinator_tokens", "Response tokens generated.", registry=self.registry)
        self._discarded = Counter(
            "rljob_coordinator_discarded_tokens", "Response tokens not trained on.", registry=self.registry
        )
        self._responses = Counter(
            "rljob_coordinator_responses", "Responses by how they ended.", ["outcome"], registry=self.registry
        )
        self._stopped = Counter(
            "rljob_coordinator_aborted_responses", "Responses stopped: others were first.", registry=self.registry
        )
        self._requeued = Counter(
            "rljob_coordinator_requeued_prompts", "Prompts that lost a race and were queued.", registry=self.registry
        )
        self._filtered = Counter("rljob_coordinator_filtered_groups", "Groups given up.", registry=self.registry)
        self._aborted = Counter(
            "rljob_coordinator_aborted_samples", "Samples dropped for a failure of ours.", registry=self.registry
        )
        self._preemptions = Counter("rljob_coordinator_preemptions", "Requests preempted.", registry=self.registry)
        self._early = Counter(
            "rljob_coordinator_early_groups",
            "Groups whose gradients were computed while others still generated.",
            registry=self.registry,
        )
        self._overlap = Counter(
            "rljob_coordinator_overlap_seconds", "Seconds of training beside generation.", registry=self.registry
        )
        self._seconds = Histogram(
            "rljob_coordinator_round_seconds", "Parts of a round.", ["part"], buckets=_SECONDS, registry=self.registry
        )
        self._queue = Gauge(
            "rljob_coordinator_long_queue", "Prompts that wait for a long round.", registry=self.registry
        )
        self._lengths = Gauge(
            "rljob_coordinator_mean_response_tokens",
            "Mean length of the last round's responses: trained on, and launched (a survival estimate).",
            ["responses"],
            registry=self.registry,
        )
        self._reward = Gauge("rljob_coordinator_reward", "Mean reward of the last round.", registry=self.registry)
        self._mismatch = Gauge(
            "rljob_coordinator_mismatch_kl", "KL between sampler and trainer in the last round.", registry=self.registry
        )
        self._version = Gauge("rljob_coordinator_weight_version", "Newest version published.", registry=self.registry)
        self._kv = Gauge("rljob_coordinator_kv_cache_use", "Highest share of KV cache in use.", registry=self.registry)
        self._suspects = Gauge("rljob_coordinator_suspects", "Machines believed dead.", registry=self.registry)

    def round(self, report: RoundReport, trained: TrainReport) -> None:
        """A `RoundObserver`."""
        self._rounds.labels(report.kind.value).inc()
        self._tokens.inc(report.tokens or 0)
        self._discarded.inc(report.discarded_tokens or 0)
        self._responses.labels("trained").inc(report.responses or 0)
        self._responses.labels("discarded").inc((report.launched_responses or 0) - (report.responses or 0))
        self._stopped.inc(report.aborted_responses or 0)
        self._requeued.inc(report.requeued_prompts or 0)
        self._filtered.inc(report.filtered_groups or 0)
        self._queue.set(report.long_queue or 0)
        self._lengths.labels("trained").set(report.mean_response_tokens or 0)
        self._lengths.labels("launched").set(report.launched_mean_tokens or 0)
        self._aborted.inc(report.aborted_samples or 0)
        self._preemptions.inc(report.preemptions or 0)
        self._early.inc(report.early_groups or 0)
        self._overlap.inc(report.overlap_seconds or 0.0)
        for part in ("generation", "training", "broadcast"):
            self._seconds.labels(part).observe(getattr(report, f"{part}_seconds") or 0.0)
        self._reward.set(report.reward or 0.0)
        self._mismatch.set(trained.mismatch_kl)

    def status(self, status: RuntimeStatus) -> None:
        """What was reported last."""
        self._version.set(status.weight_version or 0)
        self._kv.set(status.kv_cache_use or 0.0)
        self._suspects.set(len(status.suspects))
