"""Releases of the chart, by real Helm, on the server of the tests."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.charts.operator_process import wait
from tests.support.charts.tools import Tools
from tests.support.crd import of_revision

SYSTEM, JOBS = "upgrade-system", "upgrade-jobs"


def release(server: Tools, chart: Path, *values: str, check: bool = True) -> str:
    """`helm upgrade --install`."""
    where = ("--namespace", SYSTEM, "--create-namespace")
    return server.helm("upgrade", "--install", "rljob", str(chart), *where, *values, check=check)


def until_guarded(server: Tools) -> None:
    """Until the policy refuses an older CRD. The server puts a new one into force a moment after it was created."""
    trial = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
    older = json.dumps(of_revision(0))
    refused = "installed CRD has schema revision"
    wait("the policy in force", lambda: refused in server.kubectl(*trial, stdin=older, check=False))
