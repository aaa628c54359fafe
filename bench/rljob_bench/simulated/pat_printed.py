"""What PAT prints of its own setting: 128 responses on one H100 server from TP 2 (Fig. 11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_bench.simulated.pat_stages import H100_8B, H100_14B, Engines
from rljob_runtime.cli.bench_result import figure


@dataclass(frozen=True)
class Printed:
    """Seconds of generation before and after, and tokens per second of complete steps over those before."""

    engines: Engines
    max_tokens: int
    before: float
    after: float
    step_speedup: float

    @property
    def saved(self) -> float:
        """Share of generation that is saved."""
        return 1 - self.after / self.before

    @property
    def other_stages(self) -> float:
        """Seconds of a step outside of generation, which do not change: those that agree with both ratios."""
        return (self.before - self.after) / (1 - 1 / self.step_speedup) - self.before


PRINTED = (Printed(H100_8B, 24_576, 134.3, 87.9, 1.37), Printed(H100_14B, 16_384, 133.9, 91.1, 1.29))


def printed_figures(name: str, printed: Printed, ours: float, static: Mapping[int, float]) -> Iterator[dict[str, Any]]:
    """Yield what our generation saves of TP 2's, the printed share beside it, and the same of complete steps.

    `ours`: its seconds from TP 2. `static`: those of each size."""
    before, best, others = static[2], min(static.values()), printed.other_stages
    yield figure(f"{name}: time saved", 1 - ours / before, printed.saved, "PAT", unit="share")
    yield figure(f"{name}: time saved by the best static size", 1 - best / before, unit="share")
    step, limit = (before + others) / (ours + others), (before + others) / (best + others)
    text = f"{name}: step over that of TP 2, with the printed time of other stages"
    yield figure(text, step, printed.step_speedup, "PAT; limit: the best static size", limit)
