"""Machines for tests of adaptive tensor parallelism: engines whose best size is plain from their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, Running, SizedEngine
from rljob_runtime.scheduling.adaptive_tp.switch_costs import Part, SwitchCosts
from rljob_runtime.scheduling.round_planner.survival import Survival

ACCELERATORS = 4


def engine(size: int, kv_tokens: int = 10**7, slow: float = 1.0) -> SizedEngine:
    """A wider engine has shorter steps for few sequences; in all, narrow ones generate more tokens per second."""
    fixed, slope = 0.001 + 0.020 / size, 0.0008 + 0.0001 * size
    knots = tuple((batch, slow * (fixed + slope * batch)) for batch in (1.0, 64.0, 256.0))
    return SizedEngine(LatencyModel(knots, 0.0, 0.01, 1e-5, 0.0), kv_tokens, 1000 // size)


ENGINES = {size: engine(size) for size in (1, 2, 4)}
LENGTHS = (*range(50, 1000, 10), *range(1000, 8000, 1000))
LIMIT = 8000


def costs(fixed: float = 0.5, byte: float = 0.0) -> SwitchCosts:
    """Costs of switches: seconds without responses, and per byte of KV in either direction."""
    zero = dict.fromkeys((Part.SLEEP, Part.WAKE, Part.LOAD), 0.0)
    return SwitchCosts({**zero, Part.DRAIN: fixed, Part.EXPORT: byte, Part.IMPORT: byte})


def machine(
    counts: Sequence[int], size: int = 1, generated: int = 900, lengths: Sequence[int] = LENGTHS
) -> MachineSnapshot:
    """A machine in the tail of a plain round, with so many responses on each of its replicas."""
    replicas = tuple(tuple(Running(100, generated + 10 * place) for place in range(count)) for count in counts)
    running = [one.generated for replica in replicas for one in replica]
    return MachineSnapshot(size, ACCELERATORS, replicas, Survival(lengths, running), LIMIT)
