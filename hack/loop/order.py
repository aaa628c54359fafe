"""Order: which tests one process takes together, and that the longest begin first.

Tests of one file stay together, and so do files that share a server with the life of the process. Otherwise each
process would start each kind of server, and an idle API server with its controllers takes a tenth of a processor.
Tests of jobs on real nodes share a cluster (`installed`); those of the nodes themselves have another one beside it.
pytest's results show which files share one, as they show their seconds: the dividing process collects no tests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest
from xdist.scheduler import LoadScopeScheduling

from .seconds import PARTS, SERVER, known, servers

SHARED = {
    "kueue": "kueue",
    "fake_nodes": "fake_nodes",
    "chart_cluster": "chart_cluster",
    "apiserver": "apiserver",
    "minor_server": "apiserver",
    "unit_fork_server": "unit_fork_server",
    "installed": "installed",
    "real_nodes": "real_nodes",
}
"""The fixtures that hold such servers, and their servers' names, the largest first: a file that uses two stays with
the first."""


class TogetherScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Gives a process all files that share a server, and else a file."""

    groups: Mapping[str, str]

    def _split_scope(self, nodeid: str) -> str:
        return self.groups.get(module(nodeid), module(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> TogetherScheduling | None:
    """Divide the tests so, where a file is to stay together (``--dist loadfile``)."""
    if config.getoption("dist") != "loadfile":
        return None
    made = TogetherScheduling(config, log)
    made.groups = servers()
    return made


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the files by the seconds of their group, and note each file's server in the results."""
    if not hasattr(config, "workerinput"):
        return
    fixtures: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        fixtures[module(item.nodeid)].update(getattr(item, "fixturenames", ()))
    used = {
        name: next((server for fixture, server in SHARED.items() if fixture in found), None)
        for name, found in fixtures.items()
    }
    for item in items:
        if server := used[module(item.nodeid)]:
            item.user_properties.append((SERVER, server))
    seconds: Counter[str] = Counter()
    for part in PARTS:
        seconds.update(known(part))
    begins = {name: number for number, name in enumerate(longest_first(list(used), servers(), seconds))}
    items.sort(key=lambda item: begins[module(item.nodeid)])


def longest_first(modules: list[str], groups: Mapping[str, str], seconds: Mapping[str, float]) -> list[str]:
    """Sort the modules by the seconds of their group, then by their own. A module without a group is its own group."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name in modules:
        sums[groups.get(name, name)] += seconds.get(name, 0.0)

    def key(name: str) -> tuple[float, str, float]:
        group = groups.get(name, name)
        return -sums[group], group, -seconds.get(name, 0.0)

    return sorted(modules, key=key)


def module(node: str) -> str:
    """Name a test's file as pytest's results do: ``tests.unit.relay.network.test_wire``."""
    return node.partition("::")[0].removesuffix(".py").replace("/", ".")
