"""helm and kubectl as users have them, and a private API server to point them at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hack.local_cluster.private import apiserver as private
from hack.local_cluster.private import kwok
from hack.local_cluster.programs import tools as packaged
from tests.support.charts.releases import JOBS, SYSTEM
from tests.support.charts.tools import Tools


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(packaged.folder(), tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def chart_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[private.Server]:
    """An API server with controllers and no nodes. Not the suite's shared one, because tests here delete the CRD."""
    with private.api_server(tmp_path_factory.mktemp("chart"), controllers=True) as running:
        yield running


@pytest.fixture(scope="module")
def chart_nodes(chart_cluster: private.Server) -> Iterator[kwok.FakeNodes]:
    """Nodes of that server for the tests of one file. No others expect the pods of a release to run."""
    with kwok.fake_nodes(chart_cluster, 2) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def server(tools: Tools, chart_cluster: private.Server) -> Tools:
    """The tools, pointed at that API server."""
    return Tools(tools.path, tools.home, chart_cluster.kubeconfig)


@pytest.fixture
def jobs(server: Tools) -> Iterator[Tools]:
    """A server with a namespace for jobs; what the test installs is removed after it."""
    server.kubectl("create", "namespace", JOBS)
    yield server
    server.kubectl("delete", "rljobs", "--all", "-n", JOBS, check=False)
    server.helm("uninstall", "rljob", "--namespace", SYSTEM, "--ignore-not-found")
    server.remove_crd()
    server.kubectl("delete", "namespace", JOBS, SYSTEM, "--ignore-not-found")
