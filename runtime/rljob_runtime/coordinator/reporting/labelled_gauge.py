"""Labelled gauge: the values of one round by labels."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan

from prometheus_client import Gauge

Labels = tuple[str, ...]


class LabelledGauge:
    """A gauge whose labels have the values of the last round, and no older ones.

    Labels that the last round lacks are NaN, a gap in a graph: Prometheus would take an older value for a new one.
    They are not removed first, so a scrape meanwhile finds no gap where there is none.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: set[Labels] = set()

    def show(self, values: Mapping[Labels, float | None]) -> None:
        """Show these values. None: not known."""
        for labels in self._shown - values.keys():
            self._gauge.labels(*labels).set(nan)
        for labels, value in values.items():
            self._gauge.labels(*labels).set(nan if value is None else value)
        self._shown |= values.keys()
