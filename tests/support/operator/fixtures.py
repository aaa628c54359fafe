"""A private API server with the CRD in it, and a namespace of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from rljob_kube.connection import Connection
from tests.support.operator.harness import CRD, Server, admin, connect, make_namespace, options, running


@pytest.fixture(scope="session")
def connection(apiserver: Any) -> Connection:
    """The admin's connection to the API server, which knows RLJobs."""
    return connect(apiserver.kubeconfig, yaml.safe_load(CRD.read_text()))


@pytest.fixture
async def server(connection: Connection) -> AsyncIterator[Server]:
    """An admin's client in a fresh namespace."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    async with admin(connection) as kube:
        await make_namespace(kube, name)
        yield Server(kube, name)


@pytest.fixture
async def operator(connection: Connection, server: Server) -> AsyncIterator[Any]:
    """A running operator that serves the test's namespace."""
    async with running(connection, options(server.namespace)) as found:
        yield found
