"""Waiting for the CRD."""

import subprocess
import time
from collections.abc import Callable


def until_established(kubectl: Callable[..., object], seconds: float = 60) -> None:
    """Until the server serves RLJobs. `kubectl` runs it with these arguments and raises when it fails, as it does at
    once while a new CRD has no conditions yet."""
    end = time.monotonic() + seconds
    while True:
        try:
            kubectl("wait", "--for=condition=Established", "crd/rljobs.rljob.dev", f"--timeout={seconds:.0f}s")
            return
        except (AssertionError, subprocess.CalledProcessError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
