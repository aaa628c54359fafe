"""The coordinator's Prometheus metrics, in a registry of their own. Names begin with `rljob_coordinator_`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from rljob_api.status import RoundReport, RuntimeStatus
from rljob_runtime.coordinator.protocols import TrainReport
from rljob_runtime.scheduling.reward_figures import RewardFigures

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
        self._lent = Counter(
            "rljob_coordinator_lent_machines", "Rollout machines lent to training.", registry=self.registry
        )
        self._worker_groups = Counter(
            "rljob_coordinator_worker_groups", "Groups that lent machines computed.", registry=self.registry
        )
        self._gain = Gauge(
            "rljob_coordinator_predicted_gain_seconds",
            "What lending was last predicted to save in a round.",
            registry=self.registry,
        )
        self._seconds = Histogram(
            "rljob_coordinator_round_seconds", "Parts of a round.", ["part"], buckets=_SECONDS, registry=self.registry
        )
        self._plans = Counter(
            "rljob_coordinator_plans", "Rounds by how they were played.", ["plan"], registry=self.registry
        )
        self._prediction = Gauge(
            "rljob_coordinator_prediction_error",
            "Seconds of the last round that was predicted, over the prediction, less one.",
            registry=self.registry,
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
        self._capped = Gauge(
            "rljob_coordinator_capped_fraction",
            "Share of the last round's tokens whose importance weight was cut.",
            registry=self.registry,
        )
        self._effective = Gauge(
            "rljob_coordinator_effective_sample_size",
            "Of the last round's importance ratios, as a share of its tokens.",
            registry=self.registry,
        )
        self._version = Gauge("rljob_coordinator_weight_version", "Newest version published.", registry=self.registry)
        self._kv = Gauge("rljob_coordinator_kv_cache_use", "Highest share of KV cache in use.", registry=self.registry)
        self._suspects = Gauge("rljob_coordinator_suspects", "Machines believed dead.", registry=self.registry)

    def watch_rewards(self, figures: Callable[[], RewardFigures]) -> None:
        """Show what the rewards did, as of each scrape."""
        self.registry.register(_RewardCollector(figures))

    def round(self, report: RoundReport, trained: TrainReport) -> None:
        """A `RoundObserver`."""
        self._rounds.labels(report.kind.value).inc()
        self._tokens.inc(report.tokens or 0)
        self._discarded.inc(report.discarded_tokens or 0)
        self._responses.labels("trained").inc(report.responses or 0)
        # An update may train on more than was launched since the one before it.
        self._responses.labels("discarded").inc(max(0, (report.launched_responses or 0) - (report.responses or 0)))
        self._stopped.inc(report.aborted_responses or 0)
        self._requeued.inc(report.requeued_prompts or 0)
        self._filtered.inc(report.filtered_groups or 0)
        self._plans.labels(report.plan or "").inc()
        if report.predicted_seconds and report.seconds is not None:
            self._prediction.set(report.seconds / report.predicted_seconds - 1)
        self._queue.set(report.long_queue or 0)
        self._lengths.labels("trained").set(report.mean_response_tokens or 0)
        self._lengths.labels("launched").set(report.launched_mean_tokens or 0)
        self._aborted.inc(report.aborted_samples or 0)
        self._preemptions.inc(report.preemptions or 0)
        self._early.inc(report.early_groups or 0)
        self._overlap.inc(report.overlap_seconds or 0.0)
        self._lent.inc(report.lent_machines or 0)
        self._worker_groups.inc(report.worker_groups or 0)
        if report.predicted_gain_seconds is not None:
            self._gain.set(report.predicted_gain_seconds)
        for part in ("generation", "training", "broadcast"):
            self._seconds.labels(part).observe(getattr(report, f"{part}_seconds") or 0.0)
        self._reward.set(report.reward or 0.0)
        self._mismatch.set(trained.mismatch_kl)
        self._capped.set(trained.capped_fraction)
        self._effective.set(trained.effective_sample_size)

    def status(self, status: RuntimeStatus) -> None:
        """What was reported last."""
        self._version.set(status.weight_version or 0)
        self._kv.set(status.kv_cache_use or 0.0)
        self._suspects.set(len(status.suspects))


class _RewardCollector(Collector):
    """The totals that rewards keep themselves."""

    def __init__(self, figures: Callable[[], RewardFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[CounterMetricFamily]:
        now = self._figures()
        yield _total("scored_samples", "Samples that rewards scored.", now.scored)
        yield _total("reward_seconds", "Spent on samples by rewards, waiting for a turn included.", now.seconds)
        yield _total("reward_processes", "Processes started to score in.", now.processes)
        failed = CounterMetricFamily(
            "rljob_coordinator_reward_failures", "Samples that a reward aborted.", labels=["rule", "reason"]
        )
        for labels, count in now.failed.items():
            failed.add_metric(labels, count)
        yield failed
        programs = CounterMetricFamily(
            "rljob_coordinator_programs", "Runs of programs against a test, by how they ended.", labels=["end"]
        )
        for end, count in now.programs.items():
            programs.add_metric([end], count)
        yield programs
        yield _total("program_seconds", "Processor seconds of programs.", now.program_seconds)
        yield _total("program_timeouts", "Runs past their adaptive timeout.", now.timeouts)
        yield _total("shadow_timeouts", "Of these in the shadow sample, which ran on.", now.shadow_timeouts)
        yield _total("late_programs", "Of these right in the end: their timeout was unjust.", now.late)


def _total(name: str, told: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"rljob_coordinator_{name}", told, value=value)
