"""Host: what a simulated process finds on its machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_runtime.simulator.core.events import Observe, unobserved
from rljob_runtime.simulator.core.process_clock import ProcessClock
from rljob_runtime.simulator.peers.relay import Weights


@dataclass(frozen=True)
class Host:
    """The machine's weights, the process's clock, and who is told what it does.

    `room` returns whether the accelerators have memory left.
    """

    weights: Weights = field(default_factory=Weights)
    pace: ProcessClock = field(default_factory=ProcessClock)
    observe: Observe = unobserved
    room: Callable[[], bool] = lambda: True
