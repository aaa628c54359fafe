"""The CRD on a private API server: the suite's own, and with `-m all_minors` one of each other minor."""

from __future__ import annotations

import time
import uuid

import pytest

from hack.local_cluster.private.apiserver import Server
from rljob_api.schema.crd import crd
from tests.support.api.kubectl import Kube
from tests.support.crd import until_established
from tests.support.minors import Minor


@pytest.fixture(scope="session")
def server(minor: Minor, minor_server: Server) -> Kube:
    """kubectl and a client in a namespace of its own, against a server that knows RLJobs."""
    kube = Kube(minor.tools() / "kubectl", minor_server.kubeconfig, f"api-{uuid.uuid4().hex[:8]}")
    kube.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd())
    until_established(kube.run)
    kube.run("create", "namespace", kube.namespace)
    end = time.monotonic() + 60
    while kube.run("explain", "rljob.spec", check=False).returncode:
        assert time.monotonic() < end, "the API server never explained the kind"
        time.sleep(0.2)
    return kube
