"""Gateway metrics: the totals of the gateway's parts for Prometheus, under `rljob_gateway_`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rljob_kube.bounded_server import ConnectionStats
from rljob_runtime.gateway.environment_routes import RunnerStats
from rljob_runtime.gateway.gateway import GatewayStats
from rljob_runtime.gateway.histories import HistoryStats
from rljob_runtime.gateway.link.client import LinkClientStats
from rljob_runtime.gateway.memory import MemoryStats
from rljob_runtime.gateway.own_share import OwnShare
from rljob_runtime.gateway.text.forked_text import TextStats
from rljob_runtime.gateway.wire.repeats import RepeatStats

PREFIX = "rljob_gateway_"
OWN = "own_seconds"
HELP: Mapping[str, str] = {
    "turns": "Turns that were answered.",
    "forks": "Turns that opened a branch beside an existing one.",
    "retries_served": "Requests that received a turn that was stored before.",
    "repeats": "Requests that equal one whose client was served, and do not say that they are retries.",
    "rewritten": "Conversations whose last answer the client changed.",
    "rerendered": "Conversations that the template could not go on with.",
    "reencoded_tokens": "Sampled tokens that a continued prompt had in another form.",
    "malformed_calls": "Attempts of the model at tool calls that are none, and answers that cannot be read.",
    "texts_given_up": "Texts that took a model's renderer more processor time than they may.",
    "connections_refused": "Connections of runners and agents beyond the bounds.",
    "calls_again": "Calls of the coordinator that were sent again.",
    "refused": "Requests that were answered with an error.",
    "history_misses": "Requests whose attempt had no turns in the gateway. The first one of each attempt is one.",
    "history_rereads": "Attempts whose turns were read: the gateway had dropped them, or was new.",
    "memory_waits": "Requests that waited for a place or for memory.",
    "memory_refused": "Requests that were refused because of the bytes or the number of their attempt's.",
    "memory_full": "Requests that were refused because of what all attempts hold.",
    "runner_memory_waits": "Requests of runners that waited until others of them held less memory.",
    "runner_memory_refused": "Requests of runners that were refused because of their environment's bytes or number.",
    "runner_memory_full": "Requests of runners that were refused because of what all of them hold.",
    "leased": "Attempts that were passed on to a runner.",
    "handed_back": "Attempts whose runner left while it waited for one.",
    "reports": "Reports of ended attempts.",
    "ended_unserved": "Attempts that ended without a place for a request of theirs. They are failures of ours.",
    "calls": "Calls of tools that were stored.",
    "leases_held_back": "Looks for attempts that waited until runners had read others.",
    "stopped": "Attempts that heartbeats were told to stop. An attempt counts each time.",
    "ended_before": "Reports of attempts that had ended without their runner, of calls and of ends.",
    "coordinator_away": "Requests of runners that were answered with 503.",
    "connections": "Connections to the coordinator.",
    "broken_calls": "Calls of the coordinator that a broken connection ended.",
    OWN: "Seconds that the gateway adds to an answered turn: without waits for the coordinator and for the client.",
    "late_answers": "Frames of answers that no caller waited for.",
}


@dataclass(frozen=True)
class GatewayParts:
    """The totals of each part of a gateway. A name stands in one of them only; `runner_memory` has a prefix."""

    gateway: GatewayStats = field(default_factory=GatewayStats)
    histories: HistoryStats = field(default_factory=HistoryStats)
    repeats: RepeatStats = field(default_factory=RepeatStats)
    memory: MemoryStats = field(default_factory=MemoryStats)
    runners: RunnerStats = field(default_factory=RunnerStats)
    runner_memory: MemoryStats = field(default_factory=MemoryStats)
    link: LinkClientStats = field(default_factory=LinkClientStats)
    texts: TextStats = field(default_factory=TextStats)
    connections: ConnectionStats = field(default_factory=ConnectionStats)
    own: OwnShare = field(default_factory=OwnShare)

    def totals(self) -> dict[str, int]:
        """Return the present totals by their names without `PREFIX`."""
        own = (self.gateway, self.histories, self.repeats, self.memory, self.runners)
        parts = (*own, self.link, self.texts, self.connections)
        totals = {name: total for part in parts for name, total in asdict(part).items()}
        return totals | {f"runner_{name}": total for name, total in asdict(self.runner_memory).items()}


class GatewayMetrics(Collector):
    """The totals, read when they are asked for."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    def collect(self) -> Iterable[Metric]:
        """Return one counter for each total, and the histogram of the gateway's own share of turns."""
        for name, total in self._parts.totals().items():
            yield CounterMetricFamily(PREFIX + name, HELP[name], value=total)
        own = HistogramMetricFamily(PREFIX + OWN, HELP[OWN])
        own.add_metric([], self._parts.own.buckets, self._parts.own.seconds)
        yield own

    def registry(self) -> CollectorRegistry:
        """Return a registry with these metrics."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry
