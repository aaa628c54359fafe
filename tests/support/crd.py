"""The CRD of other releases, and waiting for a server to follow one."""

import subprocess
import tarfile
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from rljob_api.constants import SCHEMA_REVISION, SCHEMA_REVISION_ANNOTATION
from rljob_api.schema.crd import crd
from tests.support.paths import ROOT

FIRST_CHART = ROOT / "tests/integration/charts/fixtures/rljob-0.1.0.tgz"
RENAMED = "rljob.spec.data.onBadLine"
"""A field of the first release whose description says now that it is refused."""


def first_crd() -> dict[str, Any]:
    """The CRD of the first release. It has no schema revision."""
    with tarfile.open(FIRST_CHART) as chart:
        file = chart.extractfile("rljob/files/crd.yaml")
        assert file is not None
        found: dict[str, Any] = yaml.safe_load(file)
    return found


def of_revision(revision: int) -> dict[str, Any]:
    """The present CRD under another schema revision."""
    found = crd()
    found["metadata"]["annotations"][SCHEMA_REVISION_ANNOTATION] = str(revision)
    return found


def next_crd() -> dict[str, Any]:
    """The CRD as a later release may have it: one field more, and so another schema revision."""
    found = of_revision(SCHEMA_REVISION + 1)
    spec = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["later"] = {"type": "string", "maxLength": 10}
    return found


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
