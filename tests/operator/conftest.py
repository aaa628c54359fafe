"""A private API server with the CRD in it, and a namespace of its own for each test."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kopf
import pytest
import yaml

sys.path.append(str(Path(__file__).parent))

from operator_kit import Server, admin, make_namespace, options, running, until

from rljob_operator.kube.errors import ApiError
from rljob_operator.kube.resources import RLJOB

APPLY = "application/apply-patch+yaml"
CRD = Path(__file__).resolve().parents[2] / "crds/rljob.yaml"


@pytest.fixture(scope="session")
def connection(apiserver: Any) -> kopf.ConnectionInfo:
    """The admin's connection to the API server, which knows RLJobs."""
    config = json.loads(Path(apiserver.kubeconfig).read_text())
    cluster = config["clusters"][0]["cluster"]
    found = kopf.ConnectionInfo(
        server=cluster["server"],
        ca_data=cluster["certificate-authority-data"],
        token=config["users"][0]["user"]["token"],
        default_namespace="default",
    )
    asyncio.run(_install(found))
    return found


async def _install(connection: kopf.ConnectionInfo) -> None:
    crd = yaml.safe_load(CRD.read_text())
    async with admin(connection) as kube:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        # An apply, because the tests of the API share this server and may have been first.
        params = {"fieldManager": "operator-tests", "force": "true"}
        await kube._send("PATCH", path, json.dumps(crd).encode(), params, {"Content-Type": APPLY})

        async def served() -> bool:
            found = await kube._send("GET", path, None, {}, {})
            conditions = found.get("status", {}).get("conditions") or []
            if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return False
            # The part of the server that answers for RLJobs learns of the condition as others do: a moment later.
            try:
                await kube.list(RLJOB, "default")
            except ApiError as error:
                if not error.not_found:
                    raise
                return False
            return True

        await until(served)


@pytest.fixture
async def server(connection: kopf.ConnectionInfo) -> AsyncIterator[Server]:
    """An admin's client in a fresh namespace."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    async with admin(connection) as kube:
        await make_namespace(kube, name)
        yield Server(kube, name)


@pytest.fixture
async def operator(connection: kopf.ConnectionInfo, server: Server) -> AsyncIterator[Any]:
    """A running operator that serves the test's namespace."""
    async with running(connection, options(server.namespace)) as found:
        yield found
