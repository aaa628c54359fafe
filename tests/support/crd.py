"""Waiting for the CRD."""

import subprocess
import time
from collections.abc import Callable

import pytest


def until_established(kubectl: Callable[..., object], seconds: float = 60) -> None:
    """Until the server serves RLJobs. `kubectl` runs it with these arguments and raises when it fails, as it does at
    once while a new CRD has no conditions yet, and for a moment after that while discovery does not name the kind."""
    end = time.monotonic() + seconds
    while True:
        try:
            kubectl("wait", "--for=condition=Established", "crd/rljobs.rljob.dev", f"--timeout={seconds:.0f}s")
            kubectl("get", "rljobs", "--all-namespaces")
            return
        except (AssertionError, subprocess.CalledProcessError, pytest.fail.Exception):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
