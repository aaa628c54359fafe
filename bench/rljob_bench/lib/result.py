"""Simulated result: what all of the simulator's benchmarks say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rljob_runtime.simulator.peers.assumptions import STANDARD, Setting


def settings_of(settings: Sequence[Setting]) -> dict[str, Any]:
    """Return what the figures rest on: each assumption with its source, and the layouts of the jobs."""
    return {
        "assumptions": {name: asdict(assumption) for name, assumption in STANDARD.table()},
        "layouts": [asdict(setting) for setting in settings],
    }
