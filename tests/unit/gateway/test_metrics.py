"""The gateway's totals as a scrape has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from rljob_runtime.gateway.metrics import HELP, OWN, PREFIX, GatewayMetrics, GatewayParts


def _names(parts: GatewayParts) -> Iterator[str]:
    for part in (one for one in fields(parts) if one.name != "own"):
        prefix = "runner_" if part.name == "runner_memory" else ""
        yield from (prefix + total.name for total in fields(getattr(parts, part.name)))


def test_every_total_of_every_part_is_a_counter_with_its_help() -> None:
    found = {family.name: family for family in GatewayMetrics(GatewayParts()).registry().collect()}
    assert sorted(found) == sorted(PREFIX + name for name in (*_names(GatewayParts()), OWN))
    assert {name: found[PREFIX + name].documentation for name in HELP} == HELP


def test_a_scrape_has_the_present_totals() -> None:
    parts = GatewayParts()
    registry = GatewayMetrics(parts).registry()
    parts.runners.leased, parts.memory.memory_waits, parts.runner_memory.memory_waits = 3, 5, 7
    names = ("leased", "memory_waits", "runner_memory_waits")
    assert [registry.get_sample_value(f"{PREFIX}{name}_total") for name in names] == [3, 5, 7]
