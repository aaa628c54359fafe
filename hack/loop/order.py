"""Order: the test files that take longest begin first, so that no process ends long after the others."""

from __future__ import annotations

from collections import Counter

import pytest

from .seconds import PARTS, known


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the files by their seconds, where several processes take a file each; leave the order inside of each."""
    if not hasattr(config, "workerinput"):
        return
    seconds: Counter[str] = Counter()
    for part in PARTS:
        seconds.update(known(part))
    items.sort(key=lambda item: -seconds[module(item.nodeid)])


def module(node: str) -> str:
    """Name a test's file as pytest's results do: ``tests.relay.test_relay_wire``."""
    return node.partition("::")[0].removesuffix(".py").replace("/", ".")
