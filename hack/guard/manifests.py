"""Manifests: the CRD and what the chart renders, as parsed YAML without descriptions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from hack.local_cluster.programs import build, recipe

from . import product

VALUES: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "namespaced": ("--set=watchNamespaces={team-a,team-b}",),
    "kueue": ("--set=kueue.enabled=true", "--set=gangScheduling={Native,Coscheduling,Volcano,KAI}"),
    "network policies": ("--set=networkPolicy.enabled=true,jobs.networkPolicy=false,serviceMonitor.enabled=true",),
    "two replicas": ("--set=replicas=2,podDisruptionBudget.enabled=true",),
    "bare": (
        "--set=crds.install=false,rbac.create=false,userRoles.create=false",
        "--set=serviceAccount.create=false,serviceAccount.name=own",
    ),
}
"""Sets of values, each with the arguments of `helm template`."""
_SAME = "that of the CRD"


class NoHelm(Exception):
    """`helm` is neither in PATH nor built."""


def record_crd(root: Path) -> Any:
    """Record the CRD."""
    return undescribed(yaml.load((root / product.CRD).read_text(encoding="utf-8"), yaml.CSafeLoader))


def record_chart(root: Path, helm: Path) -> dict[str, Any]:
    """Record what each set of values renders, by the objects' kinds and names."""
    return {name: _objects(_template(root, helm, values), record_crd(root)) for name, values in VALUES.items()}


def find_helm() -> Path:
    """Find `helm` in PATH, or the one that the tests' clusters are built with. Raises `NoHelm`; builds nothing."""
    release = recipe.release()
    if (found := shutil.which("helm")) is not None:
        return Path(found)
    if "helm" not in build.missing(("helm",), release):
        return build.folder(release) / "helm"
    raise NoHelm(
        "no helm in PATH, and none built: `hack/local_cluster/cluster build` makes one, `--skip chart` goes without"
    )


def undescribed(value: Any) -> Any:
    """Drop descriptions: they are prose. A field that is called `description` has a schema, no text, and stays."""
    if isinstance(value, dict):
        return {
            key: undescribed(one) for key, one in value.items() if not (key == "description" and isinstance(one, str))
        }
    return [undescribed(one) for one in value] if isinstance(value, list) else value


def _template(root: Path, helm: Path, values: tuple[str, ...]) -> str:
    command = [str(helm), "template", "rljob", str(root / product.CHART), "--namespace", "rljob-system", *values]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _objects(rendered: str, crd: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for document in yaml.load_all(rendered, yaml.CSafeLoader):
        if not document:
            continue
        document = undescribed(document)
        if document["kind"] == crd["kind"] and document["spec"] == crd["spec"]:
            document["spec"] = _SAME
        meta = document["metadata"]
        name = "/".join(filter(None, (document["kind"], meta.get("namespace"), meta["name"])))
        if name in found:
            raise ValueError(f"the chart renders {name} twice")
        found[name] = document
    return found
