"""Product: the only module of the guard that names modules of the product. A renaming of those rewrites it too."""

from __future__ import annotations

import argparse
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import typer
from prometheus_client import CollectorRegistry

import rljob_api
import rljob_operator
import rljob_runtime
from rljob_api.spec.training import Mode
from rljob_api.status import Condition
from rljob_operator.__main__ import parser as operator_parser
from rljob_operator.metrics import Metrics
from rljob_operator.policies.base.decisions import Event
from rljob_runtime.cli import app
from rljob_runtime.coordinator.reporting.layout_stats import LayoutStats
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.gateway.metrics import GatewayMetrics, GatewayParts
from rljob_runtime.protocols.reward_stats import RewardStats
from rljob_runtime.simulator.core.events import Event as Simulated
from rljob_runtime.simulator.core.events import Reported
from rljob_runtime.simulator.drawn_scenario import draw_scenario, plan_of
from rljob_runtime.simulator.run import simulate

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("crds", "operator", "runtime", "bench", "envs")
"""Folders of the product's packages. A name may move between them; a folder may be absent."""
CRD = "crds/rljob.yaml"
CHART = "charts/rljob"
MODES: tuple[str, ...] = tuple(mode.value for mode in Mode)
EVENT, CONDITION = Event.__name__, Condition.__name__
"""Classes whose constructors take the names of events and of conditions."""


class OtherTree(Exception):
    """Packages are imported from another checkout than the guard's."""


def check_imports() -> None:
    """Raise `OtherTree` unless the product's packages are those of this checkout."""
    for package in (rljob_api, rljob_operator, rljob_runtime):
        where = Path(package.__path__[0]).resolve()
        if not where.is_relative_to(ROOT):
            wanted = ":".join(str(ROOT / source) for source in SOURCES)
            raise OtherTree(f"{package.__name__} is imported from {where}; PYTHONPATH={wanted} would be right")


def play_seed(mode: str, seed: int) -> dict[str, str | int | float | bool]:
    """Run one seed of the simulator."""
    # Warnings of the coordinator are what faults are for.
    logging.getLogger("rljob_runtime").setLevel(logging.CRITICAL)
    scenario, statuses = draw_scenario(seed, Mode(mode)), hashlib.blake2b(digest_size=8)

    def observe(event: Simulated) -> None:
        if isinstance(event, Reported):
            statuses.update(f"{sorted(numbers(event.status.model_dump()))!r}\n".encode())

    outcome = simulate(scenario, plan_of(scenario), [observe])
    return {
        "digest": outcome.digest,
        "statuses": statuses.hexdigest(),
        "events": outcome.events,
        "seconds": outcome.seconds,
        "coordinators": outcome.coordinators,
        "passed": outcome.passed,
    }


def numbers(status: object) -> Iterator[str]:
    """List the numbers of a status, without the names of its fields and the words that an API renames."""
    if isinstance(status, dict | list | tuple):
        for one in status.values() if isinstance(status, dict) else status:
            yield from numbers(one)
    elif isinstance(status, int | float):
        yield repr(status)


def registries() -> dict[str, CollectorRegistry]:
    """Make the registry of each process, with every metric in it."""
    coordinator = CoordinatorMetrics(CollectorRegistry())
    coordinator.watch_rewards(RewardStats)
    coordinator.watch_loop(lambda: 0.0)
    coordinator.watch_layouts(LayoutStats)
    gateway = GatewayMetrics(GatewayParts())
    return {"operator": Metrics().registry, "coordinator": coordinator.registry, "gateway": gateway.registry()}


def command_line() -> typer.Typer:
    """Return the `rljob` command."""
    return app


def operator_options() -> argparse.ArgumentParser:
    """Return the operator's command line, in an empty environment."""
    return operator_parser({})
