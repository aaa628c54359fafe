"""The CRD and the examples on a server of each Kubernetes minor, in every way in which people install them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from rljob_api import load
from rljob_api.constants import SCHEMA_REVISION, SCHEMA_REVISION_ANNOTATION
from tests.support.charts.tools import CHART, EXAMPLES, FIXTURES, Tools
from tests.support.crd import until_established, until_of_this_release
from tests.support.minors import Minor
from tests.support.paths import ROOT

pytestmark = pytest.mark.cluster
CRD = str(ROOT / "crds/rljob.yaml")


@pytest.fixture(scope="module")
def bare(minor: Minor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """A server of its own, with kubectl and Helm of its version, that has never seen an RLJob."""
    with minor.server(tmp_path_factory.mktemp("bare")) as running:
        yield Tools(minor.tools(), tmp_path_factory.mktemp("home"), running.kubeconfig)


INSTALL: dict[str, Callable[[Tools], str]] = {
    "kubectl apply": lambda bare: bare.kubectl("apply", "-f", CRD),
    "server-side apply": lambda bare: bare.kubectl("apply", "--server-side", "-f", CRD),
    "helm": lambda bare: bare.helm("install", "rljob", str(CHART), "--namespace=rljob-system", "--create-namespace"),
    "helm, client-side": lambda bare: bare.helm(
        "install", "rljob", str(CHART), "--namespace=rljob-system", "--create-namespace", "--server-side=false"
    ),
}


@pytest.mark.parametrize("way", INSTALL)
def test_chart_crd_installs_and_installs_again(bare: Tools, way: str) -> None:
    """The server takes the schema and every rule; the same again changes nothing."""
    INSTALL[way](bare)
    try:
        until_established(bare.kubectl)
        first = bare.json("crd", "rljobs.rljob.dev")
        conditions = {one["type"]: one["status"] for one in first["status"]["conditions"]}
        assert conditions["NamesAccepted"] == conditions["Established"] == "True"
        assert "NonStructuralSchema" not in conditions
        if way.startswith("kubectl") or way.startswith("server"):
            INSTALL[way](bare)
        else:
            bare.helm("upgrade", "rljob", str(CHART), "--namespace=rljob-system")
        again = bare.json("crd", "rljobs.rljob.dev")
        assert again["metadata"]["generation"] == first["metadata"]["generation"]
        assert again["spec"] == first["spec"]
        told = bare.kubectl("apply", "--server-side", "--dry-run=server", "-f", str(ROOT / "examples/minimal.yaml"))
        assert "serverside-applied (server dry run)" in told
    finally:
        bare.helm("uninstall", "rljob", "--namespace=rljob-system", "--ignore-not-found")
        bare.remove_crd()


def test_chart_of_the_first_release_is_upgraded_under_a_job(bare: Tools) -> None:
    """The CRD gets its revision, and the stored job keeps its fields. `test_upgrade.py` does more on one minor."""
    where = ("--namespace=rljob-system", "--create-namespace", "--set=replicas=0")
    job = yaml.safe_load((ROOT / "examples/minimal.yaml").read_text(encoding="utf-8"))
    job["spec"].pop("samples", None)  # unknown to the earlier release
    try:
        bare.helm("upgrade", "--install", "rljob", str(FIXTURES / "rljob-0.1.0.tgz"), *where)
        until_established(bare.kubectl)
        bare.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(job))
        before = bare.json("rljob", "minimal")
        bare.helm("upgrade", "rljob", str(CHART), *where)
        annotations = bare.json("crd", "rljobs.rljob.dev")["metadata"]["annotations"]
        assert annotations[SCHEMA_REVISION_ANNOTATION] == str(SCHEMA_REVISION)
        until_of_this_release(bare.kubectl)
        upgraded = bare.json("rljob", "minimal")
        assert upgraded["metadata"] == before["metadata"], "an upgrade of the CRD writes no job"
        assert load(upgraded).spec == load(before).spec
        bare.kubectl("replace", "--dry-run=server", "-f", "-", stdin=json.dumps(upgraded))
    finally:
        bare.kubectl("delete", "rljobs", "--all", "--ignore-not-found", check=False)
        bare.helm("uninstall", "rljob", "--namespace=rljob-system", "--ignore-not-found")
        bare.remove_crd()


@pytest.fixture(scope="module")
def with_crd(bare: Tools) -> Iterator[Tools]:
    bare.kubectl("apply", "--server-side", "-f", CRD)
    until_established(bare.kubectl)
    yield bare
    bare.remove_crd()


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_chart_example_passes_the_server(with_crd: Tools, example: Path) -> None:
    for how in ((), ("--server-side",)):
        told = with_crd.kubectl("apply", *how, "--dry-run=server", "-f", str(example))
        assert f"rljob.rljob.dev/{example.stem} " in told
        assert "Warning" not in told
