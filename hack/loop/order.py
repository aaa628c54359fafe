"""Order: which tests one process takes together, and that the longest begin first.

Tests of one file stay together. So do files that share a server which lives as long as the process: else each process
would start each kind of server, and an idle API server with its controllers takes a tenth of a processor.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

import pytest

from .seconds import PARTS, known

SHARED = ("kueue", "fake_nodes", "chart_cluster", "apiserver")
"""The fixtures that hold such servers, the largest first: a file that uses two stays with the first."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group the tests and sort the groups by their seconds, where several processes take a group each."""
    if not hasattr(config, "workerinput"):
        return
    fixtures: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        fixtures[module(item.nodeid)].update(getattr(item, "fixturenames", ()))
    groups = together(fixtures)
    seconds: Counter[str] = Counter()
    for part in PARTS:
        seconds.update(known(part))
    begins = {name: number for number, name in enumerate(longest_first(groups, seconds))}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[module(item.nodeid)]))
    items.sort(key=lambda item: begins[module(item.nodeid)])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test as the command line takes it: without its group."""
    test, at, group = report.nodeid.rpartition("@")
    if at and "]" not in group:
        report.nodeid = test


def together(fixtures: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The group of each module, from the fixtures of its tests: a server's name, or the module's own."""
    return {name: next((server for server in SHARED if server in used), name) for name, used in fixtures.items()}


def longest_first(groups: Mapping[str, str], seconds: Mapping[str, float]) -> list[str]:
    """The modules by the seconds of their group, and inside of a group by their own."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name, group in groups.items():
        sums[group] += seconds.get(name, 0.0)
    return sorted(groups, key=lambda name: (-sums[groups[name]], groups[name], -seconds.get(name, 0.0)))


def module(node: str) -> str:
    """Name a test's file as pytest's results do: ``tests.relay.test_relay_wire``."""
    return node.partition("::")[0].removesuffix(".py").replace("/", ".")
