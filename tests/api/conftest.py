"""The CRD on the suite's private API server."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from api_kube import Kube
from hack.cluster import tools

from established import until_established
from rljob_api.crd import crd


@pytest.fixture(scope="session")
def server(apiserver: Any) -> Kube:
    """kubectl in a namespace of its own, against a server that knows RLJobs (1.20, so without CEL)."""
    kube = Kube(tools.folder() / "kubectl", apiserver.kubeconfig, f"api-{uuid.uuid4().hex[:8]}")
    kube.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd(cel=False))
    until_established(kube.run)
    kube.run("create", "namespace", kube.namespace)
    end = time.monotonic() + 60
    while (
        kube.run("get", "rljobs", check=False).returncode or kube.run("explain", "rljob.spec", check=False).returncode
    ):
        assert time.monotonic() < end, "the API server never served the kind"
        time.sleep(0.2)
    return kube
