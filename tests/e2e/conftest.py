"""End to end: the operator installed by Helm on whatever cluster `kubeconfig` gives, jobs applied with kubectl."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.e2e.kubectl import SYSTEM_NAMESPACE, Kubectl
from tests.support.paths import ROOT


@pytest.fixture(scope="package")
def installed(kubeconfig: Path) -> Iterator[None]:
    """The operator, installed once for these tests, and the shell's variables that point to its cluster."""
    from hack import demo

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        tools = subprocess.run([*demo.CLUSTER, "tools"], capture_output=True, text=True, check=True).stdout.strip()
        patch.setenv("PATH", tools, prepend=os.pathsep)
        demo.install_operator()
        yield
        subprocess.run(["helm", "uninstall", "rljob", "-n", SYSTEM_NAMESPACE, "--wait"], check=True)


@pytest.fixture
def kubectl(installed: None) -> Iterator[Kubectl]:
    """kubectl in a namespace of its own, which goes with the test. It enforces the strictest Pod Security Standard."""
    namespace = f"e2e-{uuid.uuid4().hex[:8]}"
    kube = Kubectl(namespace)
    kube("create", "namespace", namespace)
    kube("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    yield kube
    kube("delete", "namespace", namespace, "--wait=false", "--ignore-not-found")


@pytest.fixture
def minimal() -> dict[str, Any]:
    """The job of examples/minimal.yaml."""
    documents = yaml.safe_load_all((ROOT / "examples/minimal.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = next(d for d in documents if d and d["kind"] == "RLJob")
    return found


@pytest.fixture
def enforced(real_nodes: Any) -> Iterator[None]:
    """The nodes enforce NetworkPolicies, which their CNI plug-ins do not."""
    real_nodes.run("network-policies", "enforce", timeout=600)
    try:
        yield
    finally:
        real_nodes.run("network-policies", "ignore")
