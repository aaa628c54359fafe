"""Limits of processor time, for tests of code that must end soon whatever it is given."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the body takes this process more processor time.

    Nothing is collected meanwhile: what all tests before have left takes a second by itself.
    """
    gc.disable()
    try:
        began = time.process_time()
        yield
        spent = time.process_time() - began
    finally:
        gc.enable()
    assert spent < seconds, f"{spent:.2f} s of processor time"
