"""Seeds: digests of simulated runs, by several processes of the lowest priority."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from typing import Any

from . import product

Outcomes = dict[str, dict[str, Any]]
"""By mode, by seed as a text: JSON has no other keys."""


def wanted(seeds: int) -> Iterator[tuple[str, int]]:
    """Yield the seeds of each mode, from 0 on; modes take turns, so that a part of them has both."""
    yield from ((mode, seed) for seed in range(seeds) for mode in product.MODES)


def play_seeds(
    todo: Iterable[tuple[str, int]], known: Outcomes, jobs: int, keep: Callable[[Outcomes, int, int], None]
) -> Outcomes:
    """Run the seeds that `known` lacks. Call `keep` with all outcomes, their number and their goal after each."""
    found: Outcomes = {mode: dict(known.get(mode, {})) for mode in product.MODES}
    todo = list(todo)
    left = [(mode, seed) for mode, seed in todo if str(seed) not in found[mode]]
    with ProcessPoolExecutor(jobs, initializer=_yield_processors) as pool:
        running = {pool.submit(product.play_seed, mode, seed): (mode, seed) for mode, seed in left}
        done = len(todo) - len(left)
        try:
            for future in as_completed(running):
                mode, seed = running[future]
                found[mode][str(seed)] = future.result()
                done += 1
                keep(found, done, len(todo))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {mode: dict(sorted(outcomes.items(), key=lambda one: int(one[0]))) for mode, outcomes in found.items()}


def _yield_processors() -> None:
    """Run on what other processes leave."""
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        # Where a container forbids it, the nice value alone decides.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
