"""The CRD and the examples on a server of each Kubernetes minor, in every way in which people install them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from rljob_api import load
from rljob_api.constants import SCHEMA_REVISION, SCHEMA_REVISION_ANNOTATION
from rljob_api.schema.downgrade import NAME
from tests.support.charts.releases import until_guarded
from tests.support.charts.tools import CHART, EXAMPLES, Tools
from tests.support.crd import FIRST_CHART, first_crd, next_crd, until_established, until_of_this_release
from tests.support.minors import Minor
from tests.support.paths import ROOT
from tests.support.rows import slow

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
        bare.helm("upgrade", "--install", "rljob", str(FIRST_CHART), *where)
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


BY_HAND = {"kubectl apply": ("apply",), "server-side apply": ("apply", "--server-side", "--force-conflicts")}


@pytest.mark.parametrize("how", BY_HAND)
def test_chart_policy_by_hand_refuses_an_older_crd(bare: Tools, how: str) -> None:
    """The folder has the CRD and its policy. A newer CRD is accepted, and after that this one is an older one."""
    apply, installed = BY_HAND[how], f"the installed CRD has schema revision {SCHEMA_REVISION}"
    try:
        bare.kubectl(*apply, "-f", str(ROOT / "crds"))
        until_established(bare.kubectl)
        until_guarded(bare)
        before = bare.json("crd", "rljobs.rljob.dev")["spec"]
        said = bare.kubectl(*apply, "-f", "-", stdin=json.dumps(first_crd()), check=False)
        assert f"{installed}, this one has 0: RLJobs would lose fields" in said
        assert bare.json("crd", "rljobs.rljob.dev")["spec"] == before

        bare.kubectl(*apply, "-f", str(ROOT / "crds"))
        bare.kubectl(*apply, "-f", "-", stdin=json.dumps(next_crd()))
        said = bare.kubectl(*apply, "-f", str(ROOT / "crds"), check=False)
        assert f"the installed CRD has schema revision {SCHEMA_REVISION + 1}, this one has {SCHEMA_REVISION}" in said
        spec = bare.json("crd", "rljobs.rljob.dev")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        assert "later" in spec["spec"]["properties"]
    finally:
        bare.remove_crd()


@pytest.mark.parametrize("how", [*slow("kubectl apply"), "server-side apply"])
def test_chart_beside_a_crd_and_policy_by_hand(bare: Tools, how: str) -> None:
    """With `crds.install=false` Helm leaves both alone. Otherwise it names the clash, and takes both where it is told
    to. Then either may write again: there is one policy, and not one of each."""
    guarded = "crd/rljobs.rljob.dev", f"validatingadmissionpolicy/{NAME}", f"validatingadmissionpolicybinding/{NAME}"
    where = ("--namespace=rljob-system", "--create-namespace")

    def owners() -> list[str | None]:
        labels = [bare.json(one)["metadata"].get("labels", {}) for one in guarded]
        return [found.get("app.kubernetes.io/managed-by") for found in labels]

    def apply() -> None:
        bare.kubectl(*BY_HAND[how], "-f", str(ROOT / "crds"))

    try:
        apply()
        until_established(bare.kubectl)
        bare.helm("install", "rljob", str(CHART), "--set=crds.install=false", *where)
        apply()
        assert owners() == [None] * 3
        bare.helm("uninstall", "rljob", "--namespace=rljob-system")
        assert owners() == [None] * 3

        said = bare.helm("install", "rljob", str(CHART), *where, check=False)
        assert "invalid ownership metadata" in said
        bare.helm("upgrade", "--install", "rljob", str(CHART), "--take-ownership", "--force-conflicts", *where)
        assert owners() == ["Helm"] * 3
        apply()
        until_guarded(bare)
        said = bare.kubectl(*BY_HAND[how], "-f", "-", stdin=json.dumps(first_crd()), check=False)
        assert f"the installed CRD has schema revision {SCHEMA_REVISION}, this one has " in said
        bare.helm("upgrade", "rljob", str(CHART), "--force-conflicts", *where)
        bare.helm("uninstall", "rljob", "--namespace=rljob-system")
        assert owners() == ["Helm"] * 3
    finally:
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
