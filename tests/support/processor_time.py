"""Processor time, for tests of code that must end soon, or must not grow, whatever it is given."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the body takes this process more processor time.

    Nothing is collected meanwhile: what all tests before have left takes a second by itself.
    """
    with _uncollected():
        began = time.process_time()
        yield
        spent = time.process_time() - began
    assert spent < seconds, f"{spent:.2f} s of processor time"


def growth(few: Callable[[], object], many: Callable[[], object], tries: int = 5) -> float:
    """Return how many times as much processor time `many` takes as `few`.

    It compares the least of tries in turn, since other processes make processor time worth less for a while.
    """
    least = [float("inf"), float("inf")]
    with _uncollected():
        for _ in range(tries):
            for place, work in enumerate((few, many)):
                began = time.process_time()
                work()
                least[place] = min(least[place], time.process_time() - began)
    return least[1] / least[0]


@contextmanager
def _uncollected() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
