"""Dashboards and alert rules of the chart: queries parse, and each metric that they name is in a real scrape."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import promql_parser
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from rljob_api.constants import HEALTH_PORT, LABEL_JOB, LABEL_ROLE, ROLE_COORDINATOR
from rljob_api.status import (
    EvaluationPoint,
    EvaluationReport,
    RelayTopology,
    RoundKind,
    RoundReport,
    RuleReward,
    RuntimeStatus,
    StatusWarning,
)
from rljob_operator.metrics import Metrics
from rljob_operator.policies.pods import gateway
from rljob_runtime.coordinator.reporting.layout_stats import LayoutStats
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.entrypoints.health import serve
from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.reward_stats import RewardStats
from tests.support.charts.tools import Tools

# Helm is built with a cluster's programs, and unit tests need none of them.
pytestmark = pytest.mark.cluster

MONITORING = "--set=podMonitor.enabled=true,prometheusRule.enabled=true,dashboards.enabled=true"
OF_TARGETS = {"namespace", "rljob", "pod", "instance", "job"}
"""Labels that Prometheus adds to a target's metrics."""
VARIABLES = {"$__rate_interval": "5m", "$namespace": ".*", "$rljob": ".*"}


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


@pytest.fixture(scope="module")
def documents(tools: Tools) -> list[dict[str, Any]]:
    return tools.template(MONITORING)


def dashboards(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [one for one in of_kind(documents, "ConfigMap") if "grafana_dashboard" in one["metadata"]["labels"]]
    return [json.loads(text) for one in found for text in one["data"].values()]


def rules(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    (found,) = of_kind(documents, "PrometheusRule")
    return [rule for group in found["spec"]["groups"] for rule in group["rules"]]


def queries(documents: list[dict[str, Any]]) -> list[str]:
    found = [rule["expr"] for rule in rules(documents)]
    for dashboard in dashboards(documents):
        found += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        variables = [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
        found += [re.fullmatch(r"label_values\((.*), \w+\)", query)[1] for query in variables]
    for name, value in VARIABLES.items():
        found = [query.replace(name, value) for query in found]
    return found


def selectors(query: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the metric and the label matchers of each selector. Raises `ValueError` for a query that does not parse."""
    found: list[tuple[str, dict[str, str]]] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, promql_parser.VectorSelector):
            found.append((expression.name, {one.name: one.value for one in expression.matchers.matchers}))
        for name in ("expr", "lhs", "rhs", "args", "vector_selector", "vs", "param"):
            inner = getattr(expression, name, None)
            for one in inner if isinstance(inner, list | tuple) else [inner]:
                if one is not None and not isinstance(one, str | int | float):
                    visit(one)

    visit(promql_parser.parse(query))
    yield from found


async def scraped(registry: CollectorRegistry) -> str:
    """What Prometheus reads from a pod with these metrics."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with (
        serve("127.0.0.1", lambda: None, registry, port, []),
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        assert response.status == 200
        return await response.text()


@pytest.fixture(scope="module")
def samples() -> dict[str, list[dict[str, str]]]:
    """The labels of each sample in the scrapes of a coordinator and of an operator, by name."""
    coordinator, operator = CoordinatorMetrics(CollectorRegistry()), Metrics()
    coordinator.watch_loop(lambda: 0.01)
    coordinator.watch_layouts(LayoutStats)
    coordinator.watch_rewards(lambda: RewardStats(scored=3, failed=Counter({("right", "Timeout"): 1})))
    rule = RuleReward(name="right", mean=0.5, deviation=0.1)
    trained = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0, metrics={"clip_fraction_low": 0.0})
    coordinator.round(RoundReport(round=1, kind=RoundKind.PLAIN, reward_rules=(rule,)), trained)
    evaluation = EvaluationReport(name="sums", last=EvaluationPoint(round=1, average=0.5, average_error=0.1))
    warning = StatusWarning(reason="CheckpointFailed", message="disk full")
    coordinator.status(RuntimeStatus(warnings=(warning,), relay=RelayTopology(revision=2), evaluations=(evaluation,)))
    operator.observe_request("get", "pods", "200", 0.1)
    operator.observe_retry("500")
    operator.reconciles.labels("Done").inc()
    operator.jobs.labels("Stalled").set(1)
    operator.replacements.labels("rollout", "NodeLost").inc()
    operator.events_seen.labels("pods", "true").inc()
    text = asyncio.run(scraped(coordinator.registry)) + asyncio.run(scraped(operator.registry))
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_every_metric_and_label_that_is_named_is_scraped(documents, samples):
    named = [selector for query in queries(documents) for selector in selectors(query)]
    assert len(named) > 60
    for metric, labels in named:
        assert metric in samples, metric
        assert labels.keys() - OF_TARGETS <= samples[metric][0].keys(), (metric, labels)
    grouped = [re.findall(r"by \(([^)]*)\)", query) for query in queries(documents)]
    for query, groups in zip(queries(documents), grouped, strict=True):
        known = {label for metric, _ in selectors(query) for sample in samples[metric] for label in sample}
        for label in {one.strip() for group in groups for one in group.split(",")}:
            assert label in known | OF_TARGETS, query


def test_legends_and_texts_name_labels_that_there_are(documents, samples):
    for dashboard in dashboards(documents):
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                query = target["expr"]
                for name, value in VARIABLES.items():
                    query = query.replace(name, value)
                known = {label for metric, _ in selectors(query) for one in samples[metric] for label in one}
                assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known | OF_TARGETS, target


def test_a_query_that_names_nothing_is_noticed():
    assert list(selectors('sum by (le) (rate(a_bucket{x="1"}[5m])) > 0.1 * max_over_time(b[1h:5m]) + -c')) == [
        ("a_bucket", {"x": "1"}),
        ("b", {}),
        ("c", {}),
    ]
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        list(selectors("sum by (le (rate(a[5m]))"))


def test_rules_say_what_to_do_and_follow_the_values(documents, tools):
    found = {rule["alert"]: rule for rule in rules(documents)}
    assert len(found) == len(rules(documents)) == 9
    for rule in found.values():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
    assert found["RLJobNoRound"]["expr"].endswith("> 7200")
    other = {rule["alert"]: rule for rule in rules(tools.template(f"{MONITORING},prometheusRule.noRoundMinutes=5"))}
    assert other["RLJobNoRound"]["expr"].endswith("> 300")
    assert "{{ $labels.namespace }}/{{ $labels.rljob }}" in found["RLJobNoRound"]["annotations"]["summary"]


def test_the_monitor_selects_coordinators_by_their_labels_and_port(documents, tools):
    (monitor,) = of_kind(documents, "PodMonitor")
    spec = monitor["spec"]
    assert spec["selector"] == {"matchLabels": {LABEL_ROLE: ROLE_COORDINATOR}}
    assert spec["namespaceSelector"] == {"any": True}
    endpoints = {one["port"]: one for one in spec["podMetricsEndpoints"]}
    assert set(endpoints) == {"health", *(port["name"] for port in gateway.ports() if "metrics" in port["name"])}
    escaped = re.sub(r"[^a-zA-Z0-9]", "_", LABEL_JOB)
    for endpoint in endpoints.values():
        (relabeling,) = endpoint["relabelings"]
        assert relabeling == {"sourceLabels": [f"__meta_kubernetes_pod_label_{escaped}"], "targetLabel": "rljob"}
    (narrow,) = of_kind(tools.template(MONITORING, "--set=watchNamespaces={a,b}"), "PodMonitor")
    assert narrow["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}
    assert HEALTH_PORT == 8080


def test_dashboards_have_their_labels_and_nothing_is_there_by_default(documents, tools):
    titles = [dashboard["title"] for dashboard in dashboards(documents)]
    assert sorted(titles) == ["RLJob operations", "RLJob training"]
    for dashboard in dashboards(documents):
        places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
        assert len(places) == len(set(places))
    kinds = {document["kind"] for document in tools.template()}
    assert kinds.isdisjoint({"PodMonitor", "PrometheusRule", "ServiceMonitor", "ConfigMap"})
