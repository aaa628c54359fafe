"""No way down that would lose fields: the server refuses a CRD of a lower schema revision, by a policy of the chart."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import yaml

from rljob_api.constants import SCHEMA_REVISION
from tests.support.charts.operator_process import wait
from tests.support.charts.releases import JOBS, SYSTEM, release, until_guarded
from tests.support.charts.tools import CHART, Tools
from tests.support.crd import FIRST_CHART, first_crd, next_crd, until_established
from tests.support.paths import ROOT

pytestmark = pytest.mark.cluster

EXAMPLE = ROOT / "examples/minimal.yaml"
NO_PODS = "--set=replicas=0"


def newer(folder: Path) -> Path:
    """This chart as a later release may have it: with another CRD."""
    chart = folder / "rljob"
    shutil.copytree(CHART, chart)
    (chart / "files/crd.yaml").write_text(yaml.safe_dump(next_crd(), sort_keys=False))
    return chart


def test_chart_downgrade_that_would_lose_fields_is_refused(jobs: Tools, tmp_path: Path) -> None:
    """An older chart, a rollback and an older CRD file are refused with both revisions and what to do, and the fields
    stay. Without the policy's binding the server does as it is asked."""
    server = jobs

    def later() -> str | None:
        """The field, after the object was written once more."""
        server.kubectl("-n", JOBS, "annotate", "--overwrite", "rljob", "minimal", f"at={time.monotonic_ns()}")
        return server.json("rljob", "minimal", "-n", JOBS)["spec"].get("later")

    def refused(said: str, proposed: int) -> None:
        assert f"the installed CRD has schema revision {SCHEMA_REVISION + 1}, this one has {proposed}" in said, said
        assert f"Use a chart or a CRD of revision {SCHEMA_REVISION + 1} or above" in said
        assert "kubectl delete validatingadmissionpolicybinding downgrade.rljobs.rljob.dev" in said

    release(server, CHART, NO_PODS)
    chart = newer(tmp_path)
    release(server, chart, NO_PODS)
    until_established(server.kubectl)
    until_guarded(server)
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["later"] = "kept"
    made = ("-n", JOBS, "apply", "-f", "-")
    wait(
        "a job with the new field", lambda: "created" in server.kubectl(*made, stdin=json.dumps(document), check=False)
    )

    deployment = server.json("deployment", "rljob", "-n", SYSTEM)
    refused(release(server, CHART, NO_PODS, check=False), SCHEMA_REVISION)
    refused(release(server, FIRST_CHART, NO_PODS, check=False), 0)
    refused(server.helm("rollback", "rljob", "1", "--namespace", SYSTEM, check=False), SCHEMA_REVISION)
    for how in ((), ("--server-side", "--force-conflicts")):
        refused(server.kubectl("apply", *how, "-f", str(ROOT / "crds/rljob.yaml"), check=False), SCHEMA_REVISION)
        said = server.kubectl("apply", *how, "-f", "-", stdin=json.dumps(first_crd()), check=False)
        # Helm wrote the annotation, so it stays. The schema alone would be the older one.
        assert f"the installed CRD has schema revision {SCHEMA_REVISION + 1}, this one has fewer fields" in said
    assert server.json("deployment", "rljob", "-n", SYSTEM)["spec"] == deployment["spec"]
    assert later() == "kept"
    release(server, chart, NO_PODS)  # the release that failed is none in the way

    server.kubectl("delete", "validatingadmissionpolicybinding", "downgrade.rljobs.rljob.dev")
    # The server looks at bindings now and then. A release that comes too early is refused, and brings the binding back.
    trial = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", str(ROOT / "crds/rljob.yaml"))
    wait("the policy without its binding", lambda: "serverside-applied" in server.kubectl(*trial, check=False))
    release(server, CHART, NO_PODS)
    wait("the schema without the field", lambda: later() is None)


def test_chart_uninstalled_still_refuses_an_older_one(jobs: Tools, tmp_path: Path) -> None:
    """The CRD stays with its jobs, and so does what guards it; another release under the name takes both over."""
    server = jobs
    chart = newer(tmp_path)
    release(server, chart, NO_PODS)
    until_guarded(server)
    server.helm("uninstall", "rljob", "--namespace", SYSTEM)
    assert f"has schema revision {SCHEMA_REVISION + 1}" in release(server, CHART, NO_PODS, check=False)
    release(server, chart, NO_PODS)
