"""Waiting for the CRD."""

import subprocess
import time
from collections.abc import Callable

import pytest

RENAMED = "rljob.spec.data.onBadLine"
"""A field of the first release whose description says now that it is refused."""


def until_established(kubectl: Callable[..., object], seconds: float = 60) -> None:
    """Until the server serves RLJobs. `kubectl` runs it with these arguments and raises when it fails, as it does
    while a new CRD has no conditions yet, and for a moment after that while discovery does not name the kind."""
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


def until_of_this_release(kubectl: Callable[..., str], seconds: float = 60) -> None:
    """Until the server has replaced the first release's schema by the present one: a moment after the CRD's update,
    and in between discovery has no rljobs."""
    end = time.monotonic() + seconds
    while "refused" not in (said := kubectl("explain", RENAMED, check=False)):
        assert time.monotonic() < end, f"not the schema with the present names: {said}"
        time.sleep(0.2)
