"""Coordinator metrics: a Prometheus registry of their own. Names begin with `rljob_coordinator_`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rljob_api.status import EvaluationReport, LayoutSwitchesReport, RoundReport, RuntimeStatus, SwitchesState
from rljob_runtime.coordinator.reporting.episode_metrics import EpisodeMetrics
from rljob_runtime.coordinator.reporting.group_metrics import QUANTILES
from rljob_runtime.coordinator.reporting.labelled_gauge import LabelledGauge
from rljob_runtime.coordinator.reporting.layout_stats import LayoutStats
from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.reward_stats import RewardStats

_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)

# Metrics by the field that they count or show. They have its name, but for `_NAMES`.
_COUNTED = {
    "tokens": "Response tokens generated.",
    "discarded_tokens": "Response tokens not trained on.",
    "lost_version_tokens": "Response tokens whose groups are drawn again, because no relay holds their weights.",
    "aborted_responses": "Responses aborted because others finished first.",
    "requeued_prompts": "Prompts that lost a race and were queued.",
    "filtered_groups": "Groups given up.",
    "unscored_groups": "Of these because a reward failed.",
    "environment_failed_groups": "Of these because an environment failed.",
    "aborted_samples": "Samples aborted because they could not be scored.",
    "preemptions": "Requests preempted.",
    "early_groups": "Groups whose gradients were computed while others still generated.",
    "overlap_seconds": "Seconds in which the trainer computed while replicas generated.",
    "loaned_machines": "Rollout machines loaned to training.",
    "loaned_groups": "Groups that loaned machines computed.",
    "trainer_wait_seconds": "Seconds in which the trainer waited for groups.",
    "buffer_full_seconds": "Mean seconds in which a replica was blocked by a full buffer.",
    "repacks": "Replicas that were emptied onto others.",
    "moved_responses": "Responses that continued at another replica.",
}
_OF_ROUND = {
    "deferred_prompts": "Prompts that wait for a long round.",
    "reward": "Mean reward of the last round.",
    "capacity_prompts": "Prompts that may be open after the last update.",
    "group_reward_deviation": "Standard deviation of rewards inside a group, mean over the last round's groups.",
    "equal_reward_groups": "Share of the last round's groups whose rewards are equal.",
    "truncated_responses": "Share of the last round's responses that were cut at their limit.",
    "idle_tail": "Share of the replicas' time in the last round without a response, while others generated.",
    "idle_rewards": "Share of the replicas' time in the last round in which all waited for rewards.",
    "idle_environments": "Share of the replicas' time in the last round in which all their responses waited for tools.",
    "idle_training": "Share of the replicas' time in the last round in which they waited for training.",
    "idle_weights": "Share of the replicas' time in the last round in which they waited for weights or loaded them.",
}
_OF_TRAINING = {
    "mismatch_kl": "KL between sampler and trainer in the last round.",
    "reference_kl": "KL divergence from the initial model in the last round.",
    "entropy": "Mean entropy of the last round's token distributions, in nats.",
    "capped_fraction": "Share of the last round's tokens whose importance weight was cut.",
    "effective_sample_size": "Of the last round's importance ratios, as a share of its tokens.",
}
_OF_STATUS = {
    "weight_version": "Newest version published.",
    "kv_cache_use": "Highest share of KV cache in use.",
    "staleness": "Mean updates between the weights of a group and its use.",
    "max_staleness": "Most updates between the weights of a group and its use.",
}
_OF_EVALUATION = {
    ("average", "value"): "average",
    ("average", "error"): "average_error",
    ("pass_at_k", "value"): "pass_at_k",
    ("pass_at_k", "error"): "pass_at_k_error",
}
"""Fields of an evaluation's last result, by their labels."""
_NAMES = {"loaned_machines": "lent_machines", "loaned_groups": "worker_groups", "deferred_prompts": "long_queue"}


class CoordinatorMetrics:
    """The metrics of rounds and of the status."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._counted = {field: self._counter(_NAMES.get(field, field), text) for field, text in _COUNTED.items()}
        shown = _OF_ROUND | _OF_TRAINING | _OF_STATUS
        self._shown = {field: self._gauge(_NAMES.get(field, field), text) for field, text in shown.items()}
        self._rounds = self._counter("rounds", "Rounds closed.", "kind")
        self._responses = self._counter("responses", "Responses by how they ended.", "outcome")
        self._plans = self._counter("plans", "Rounds by plan.", "plan")
        self._gain = self._gauge("predicted_gain_seconds", "What lending was last predicted to save in a round.")
        self._prediction = self._gauge(
            "prediction_error", "Seconds of the last round that was predicted, over the prediction, less one."
        )
        self._lengths = self._labelled(
            "mean_response_tokens",
            "Mean length of the last round's responses: trained on, and launched (a survival estimate).",
            "responses",
        )
        self._loss = self._labelled("loss_metric", "Metrics of the loss function in the last round, by name.", "name")
        self._quantiles = self._labelled(
            "response_tokens", "Length of the last round's responses, by quantile; 1 is the longest.", "quantile"
        )
        self._rules = self._labelled(
            "rule_reward",
            "Values of a reward rule in the last round, before its weight: mean or deviation.",
            "rule",
            "of",
        )
        self._evaluations = _EvaluationMetrics(self._gauge)
        self._switches = _SwitchMetrics(self._counter, self._gauge)
        self._episodes = EpisodeMetrics(self._counter, self._gauge)
        text = "Prompts trained on, by their source in spec.data.sources."
        self._source_prompts = self._counter("source_prompts", text, "source")
        text = "Mean reward of a source in the last round."
        self._source_reward = self._labelled("source_reward", text, "source")
        self._suspects = self._gauge("suspects", "Machines believed dead.")
        self._generating = self._gauge("generating_machines", "Machines that have generated since they joined.")
        self._chain = self._gauge("relay_revision", "Repairs of the relay chain in its epoch.")
        self._warnings = self._gauge("warning", "1 for each warning in the status, by reason.", "reason")
        self._last_round = self._gauge(
            "last_round_timestamp_seconds", "When the last round closed, or else when the coordinator started."
        )
        self._last_round.set_to_current_time()
        self._api_requests = self._counter("api_requests", "Requests to the API server.", "verb", "resource", "code")
        self._seconds = Histogram(
            "rljob_coordinator_round_seconds", "Parts of a round.", ["part"], buckets=_SECONDS, registry=self.registry
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"rljob_coordinator_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"rljob_coordinator_{name}", text, labels, registry=self.registry)

    def _labelled(self, name: str, text: str, *labels: str) -> LabelledGauge:
        return LabelledGauge(self._gauge(name, text, *labels))

    def count_request(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """Count a request to the API server. `code`: the status, `2xx`, or `none` without an answer."""
        self._api_requests.labels(verb, resource, code).inc()

    def watch_rewards(self, stats: Callable[[], RewardStats]) -> None:
        """Show the reward statistics at each scrape."""
        self.registry.register(_RewardCollector(stats))

    def watch_layouts(self, stats: Callable[[], LayoutStats]) -> None:
        """Show the totals of KV files and of visits to layouts at each scrape."""
        self.registry.register(_LayoutCollector(stats))

    def watch_loop(self, longest_seconds: Callable[[], float]) -> None:
        """Show the event loop's longest turn at each scrape."""
        text = "Longest turn of the coordinator's event loop in the last minute: a Lease waits for it."
        self._gauge("loop_longest_turn_seconds", text).set_function(longest_seconds)

    def round(self, report: RoundReport, trained: TrainReport) -> None:
        """Count a closed round; a `RoundObserver`."""
        for name in _COUNTED:
            self._counted[name].inc(getattr(report, name) or 0)
        self._show(report, _OF_ROUND)
        self._show(trained, _OF_TRAINING)
        self._loss.show({(name,): value for name, value in trained.metrics.items()})
        self._rounds.labels(report.kind.value).inc()
        self._last_round.set_to_current_time()
        self._responses.labels("trained").inc(report.responses or 0)
        # An update may train on more than was launched since the one before it.
        self._responses.labels("discarded").inc(max(0, (report.launched_responses or 0) - (report.responses or 0)))
        self._plans.labels(report.plan or "").inc()
        if report.predicted_gain_seconds is not None:
            self._gain.set(report.predicted_gain_seconds)
        if report.predicted_seconds and report.seconds is not None:
            self._prediction.set(report.seconds / report.predicted_seconds - 1)
        self._lengths.show({("trained",): report.mean_response_tokens, ("launched",): report.launched_mean_tokens})
        quantiles = {f"{share:g}": name for name, share in QUANTILES.items()} | {"1": "max_response_tokens"}
        self._quantiles.show({(label,): getattr(report, name) for label, name in quantiles.items()})
        rules = report.reward_rules or ()
        self._rules.show({(rule.name, of): getattr(rule, of) for rule in rules for of in ("mean", "deviation")})
        self._source_reward.show({(source.name,): source.reward for source in report.sources or ()})
        for source in report.sources or ():
            self._source_prompts.labels(source.name).inc(source.prompts)
        if report.layout_switches is not None:
            self._switches.count(report.layout_switches)
        if report.episodes is not None:
            self._episodes.round(report.episodes)
        for part in ("generation", "training", "broadcast"):
            self._seconds.labels(part).observe(getattr(report, f"{part}_seconds") or 0.0)

    def status(self, status: RuntimeStatus) -> None:
        """Show the reported status."""
        self._show(status, _OF_STATUS)
        self._suspects.set(len(status.suspects))
        self._generating.set(len(status.generating))
        if status.relay is not None:
            self._chain.set(status.relay.revision or 0)
        self._warnings.clear()
        for warning in status.warnings:
            self._warnings.labels(warning.reason).set(1)
        self._evaluations.show(status.evaluations)

    def _show(self, source: object, names: Iterable[str]) -> None:
        for name in names:
            value = getattr(source, name)
            # NaN is a gap in a graph; 0 would be a measurement.
            self._shown[name].set(math.nan if value is None else value)


class _EvaluationMetrics:
    """Metrics of the last result of each evaluation."""

    def __init__(self, gauge: Callable[..., Gauge]) -> None:
        self._results = gauge(
            "evaluation",
            "Last result of an evaluation: average (avg@k) or pass_at_k, its value or its standard error.",
            "evaluation",
            "metric",
            "of",
        )
        text = "Duration of the last evaluation, and how long training waited for it."
        self._seconds = gauge("evaluation_seconds", text, "evaluation", "of")

    def show(self, reports: Iterable[EvaluationReport]) -> None:
        for report in reports:
            if (last := report.last) is None:
                continue
            for (metric, of), field in _OF_EVALUATION.items():
                if (value := getattr(last, field)) is not None:
                    self._results.labels(report.name, metric, of).set(value)
            self._seconds.labels(report.name, "total").set(last.seconds or 0)
            self._seconds.labels(report.name, "waiting").set(last.waiting_seconds or 0)


class _SwitchMetrics:
    """Metrics of switches of the tensor parallel size inside rounds."""

    def __init__(self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]) -> None:
        text = "Switches of the tensor parallel size inside rounds: reached or failed."
        self._switches = counter("layout_switches", text, "outcome")
        text = "Rounds without such a switch, in jobs that allow it, by reason."
        self._rounds_without = counter("rounds_without_layout_switch", text, "reason")
        self._seconds = counter("layout_switch_seconds", "Seconds of switches inside rounds.")
        text = "Unfinished responses that switches inside rounds carried over."
        self._responses = counter("layout_switch_responses", text)
        text = "Bytes of keys and values that switches inside rounds moved."
        self._kv_bytes = counter("layout_switch_kv_bytes", text)
        text = "Responses whose keys and values should have moved in a switch and were computed again, by reason."
        self._recomputed = counter("layout_switch_recomputed_responses", text, "reason")
        text = "Seconds that switches inside rounds were predicted to save, for those whose gain was measured."
        self._predicted = gauge("layout_switch_predicted_gain_seconds", text)
        self._gain = gauge("layout_switch_gain_seconds", "Seconds that the same switches saved. May be negative.")

    def count(self, report: LayoutSwitchesReport) -> None:
        self._switches.labels("reached").inc(report.made or 0)
        self._switches.labels("failed").inc(report.failed or 0)
        self._seconds.inc(report.seconds or 0)
        self._responses.inc(report.responses or 0)
        self._kv_bytes.inc(report.kv_bytes or 0)
        for one in report.recomputed:
            self._recomputed.labels(one.reason).inc(one.responses)
        self._predicted.inc(report.predicted_gain_seconds or 0)
        self._gain.inc(report.gain_seconds or 0)
        if report.state is SwitchesState.NOT_SWITCHED:
            self._rounds_without.labels(report.reason or "").inc()


class _RewardCollector(Collector):
    """Collects the totals of the rewards."""

    def __init__(self, stats: Callable[[], RewardStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[CounterMetricFamily]:
        now = self._stats()
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


class _LayoutCollector(Collector):
    """Collects the totals of waits for switches, of KV files that they leave, and of idle-time profiles."""

    def __init__(self, stats: Callable[[], LayoutStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        now = self._stats()
        drops, visits = now.kv_drops, now.visits
        text = "Seconds for which a generation stage did nothing else because a machine switched its layout."
        yield _total("layout_switch_wait_seconds", text, now.switch_wait_seconds)
        yield _total("kv_drops", "Files of keys and values that replicas removed after a switch.", drops.removed)
        yield _total("kv_drop_failures", "Tries of such a removal that failed.", drops.failures)
        yield _total("kv_drop_retries", "Tries after one that failed.", drops.retries)
        yield _total("kv_drops_abandoned", "Such files that are not asked for any more.", drops.abandoned)
        text = "Bytes of such files whose removal failed, at most: a load of other weights removes them too."
        yield GaugeMetricFamily("rljob_coordinator_kv_kept_bytes", text, value=now.kv_kept_bytes)
        yield _total("layout_profiles", "Visits of resting machines to a layout, to measure it.", visits.visits)
        yield _total("layout_profile_loads", "Loads that they measured.", visits.loads)
        yield _total("layout_profile_seconds", "Seconds of these visits.", visits.seconds)
        text = "Visits for which new weights or layouts had to wait."
        yield _total("layout_profile_delays", text, visits.delays)
        yield _total("layout_profile_delay_seconds", "Seconds of these waits.", visits.delay_seconds)
        text = "Such visits that were planned to outlast the update: no machine had shown their layout."
        yield _total("layout_profile_overruns", text, visits.overruns)


def _total(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"rljob_coordinator_{name}", text, value=value)
