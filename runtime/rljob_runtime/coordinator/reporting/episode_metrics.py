"""Episode metrics: Prometheus metrics of a job with environments."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

from prometheus_client import Counter, Gauge

from rljob_api.status import EpisodesReport
from rljob_runtime.coordinator.reporting.labelled_gauge import LabelledGauge

_TURNS = {"turns_mean": "mean", "turns_p50": "0.5", "turns_p90": "0.9", "turns_p99": "0.99"}
"""Fields by the label of what they are of the turns."""
_LIMITS = ("turns", "tokens", "seconds", "forks")


class EpisodeMetrics:
    """Metrics of the episodes that rounds train on, and of failed attempts."""

    def __init__(self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]) -> None:
        text = "Turns of the last round's episodes: mean, or a quantile."
        self._turns = LabelledGauge(gauge("episode_turns", text, "of"))
        self._tokens = counter("episode_tokens", "Tokens of episodes trained on: sampled or given.", "origin")
        text = "Mean seconds of the last round's episodes: in the model, or outside of it (tools, harness)."
        self._seconds = LabelledGauge(gauge("episode_seconds", text, "part"))
        text = "Share of the last round's episodes that reached a limit, by limit."
        self._truncated = LabelledGauge(gauge("truncated_episodes", text, "limit"))
        self._forks = counter("episode_forks", "Turns of episodes trained on that opened a branch.")
        text = "Share of the prompt tokens of the last round's later turns that engines held already."
        self._prefix_hits = gauge("prefix_hit_share", text)
        text = "Responses trained on with a reward although a failure of ours ended their attempt. It must stay 0."
        self._fake_zeros = counter("fake_zeros", text)
        text = "Sampled tokens that a later prompt had in another form. It must stay 0."
        self._reencoded = counter("reencoded_tokens", text)
        text = "Attempts whose environment states other turns or tokens than the store has."
        self._differing = counter("differing_traces", text)
        self._attempts = counter("episode_attempts", "Attempts of episodes that ended, in any way.")
        self._retries = counter("turn_retries", "Requests that received a turn which was asked for before.")
        text = "Turns of episodes trained on whose weights are newer than those of the episode's oldest turn."
        self._newer = counter("turns_of_newer_weights", text)
        text = "Turns that newer weights interrupted; they are generated again from their beginning."
        self._interrupted = counter("interrupted_turns", text)
        self._interrupted_tokens = counter("interrupted_tokens", "Tokens that had arrived of interrupted turns.")
        text = "Seconds that turns waited while weights were loaded, summed over the turns."
        self._load_wait = counter("turn_load_wait_seconds", text)
        self._tool_calls = counter("tool_calls", "Calls of tools that runners reported.")
        self._resumed = counter("resumed_attempts", "Attempts of episodes that another runner went on with.")
        text = "Calls of tools that another runner executed again with the same answer."
        self._replayed = counter("replayed_tool_calls", text)
        text = "Recorded turns that a program asked for again, because another runner ran it again."
        self._replayed_turns = counter("replayed_turns", text)
        text = "Attempts of episodes that ended because a call or a program was another one when it ran again."
        self._refused_replays = counter("refused_replays", text)
        text = "Calls of stateless tools that were stored and executed again. It must be 0."
        self._twice = counter("tool_calls_executed_twice", text)
        text = "Attempts of episodes that a failure of ours ended, by the part that failed."
        self._failed = counter("failed_attempts", text, "part")
        text = "Most episodes of an environment that were open at a time in the last round."
        self._open = LabelledGauge(gauge("open_episodes", text, "environment"))
        text = "Mean seconds that an environment's episodes of the last round waited for a runner."
        self._wait = LabelledGauge(gauge("runner_wait_seconds", text, "environment"))
        text = "What an environment measured of the last round's episodes: the mean, by metric."
        self._measured = LabelledGauge(gauge("environment_metric", text, "environment", "metric"))

    def round(self, report: EpisodesReport) -> None:
        """Count a closed round."""
        self._turns.show({(label,): getattr(report, name) for name, label in _TURNS.items()})
        for origin in ("sampled", "given"):
            self._tokens.labels(origin).inc(getattr(report, f"{origin}_tokens") or 0)
        self._seconds.show({(part,): getattr(report, f"{part}_seconds") for part in ("model", "outside")})
        self._truncated.show({(limit,): getattr(report, f"truncated_by_{limit}") for limit in _LIMITS})
        self._forks.inc(report.forks or 0)
        # NaN is a gap in a graph; 0 would say that engines hold nothing.
        self._prefix_hits.set(nan if report.prefix_hit_share is None else report.prefix_hit_share)
        self._fake_zeros.inc(report.fake_zeros or 0)
        self._reencoded.inc(report.reencoded_tokens or 0)
        self._differing.inc(report.differing_traces or 0)
        self._attempts.inc(report.attempts or 0)
        self._retries.inc(report.retries or 0)
        self._newer.inc(report.turns_of_newer_weights or 0)
        self._interrupted.inc(report.interrupted_turns or 0)
        self._interrupted_tokens.inc(report.interrupted_tokens or 0)
        self._load_wait.inc(report.load_wait_seconds or 0)
        self._tool_calls.inc(report.tool_calls or 0)
        self._resumed.inc(report.resumed_attempts or 0)
        self._replayed.inc(report.replayed_calls or 0)
        self._replayed_turns.inc(report.replayed_turns or 0)
        self._refused_replays.inc(report.refused_replays or 0)
        self._twice.inc(report.calls_executed_twice or 0)
        for one in report.failed_attempts or ():
            self._failed.labels(one.part).inc(one.attempts)
        loads = report.environments or ()
        self._open.show({(load.name,): load.most_open for load in loads})
        self._wait.show({(load.name,): load.wait_seconds for load in loads})
        self._measured.show({(one.environment, one.name): one.mean for one in report.metrics or ()})
