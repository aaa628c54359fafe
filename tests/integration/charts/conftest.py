"""Helm and kubectl, and an API server to point them at."""

from tests.support.charts.fixtures import chart_cluster, chart_nodes, jobs, server, tools  # noqa: F401
