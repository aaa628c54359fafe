"""Helm and kubectl."""

from tests.support.charts.fixtures import tools  # noqa: F401
