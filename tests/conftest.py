"""Clusters for the whole suite. None assumes how it was made, so a cluster of one's own serves as well.

- ``kubeconfig``: Path to the kubeconfig of a cluster with real nodes: ``$KUBECONFIG`` where set, else one that is
  brought up once a session and taken down at its end.
- ``real_nodes``: the same cluster as something whose nodes can be switched off and cut off; skips with ``$KUBECONFIG``.
- ``process_cluster``: a cluster whose pods are processes of this machine (no root, no images, no volumes).
- ``apiserver``: a private etcd and kube-apiserver on loopback: nothing runs pods, nothing deletes namespaces.

All are made at most once a session, and only for tests that ask. Use a namespace of your own in each.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

# The gate runs the same examples every time; the search for new ones goes on wherever people run the suite.
# Nowhere is an example judged by its seconds: the machine may be busy.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from hack.cluster import apiserver as private  # noqa: E402
from hack.cluster import build, kube, lifecycle, recipe, settings  # noqa: E402

_BUILT = {"kubeconfig", "real_nodes", "process_cluster", "apiserver"}
_PREFIX = "pytest-"


@dataclass(frozen=True)
class ClusterHandle:
    """A cluster made for this session."""

    name: str

    @property
    def kubeconfig(self) -> Path:
        return settings.state_dir(self.name) / "admin.kubeconfig"

    @property
    def api(self) -> kube.Api:
        return kube.Api(self.kubeconfig)

    def run(self, *args: str, timeout: float = 240) -> str:
        """A command of hack/cluster/cluster on this cluster; its output. Raises AssertionError on failure."""
        command = [sys.executable, str(ROOT / "hack/cluster/cluster"), "--name", self.name, *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"cluster {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    def node(self, action: str, index: int) -> None:
        """kill, up, cut or join node ``index``."""
        self.run("node", action, str(index))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build Kubernetes, once ever, before the first test's clock starts."""
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())} & _BUILT
    if os.environ.get("KUBECONFIG") or os.geteuid() != 0:
        wanted -= {"kubeconfig", "real_nodes"}
    programs = recipe.CLUSTER if wanted - {"apiserver"} else (*recipe.SERVER, *recipe.TOOLS)
    if not wanted or session.config.option.collectonly or not build.missing(programs):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        try:
            build.binaries(programs)
        except settings.ClusterError as error:
            # The tests that need it fail with the same words; the others still run.
            warnings.warn(f"Kubernetes was not built: {error}", stacklevel=1)


def _take_down_stale() -> None:
    """Clusters of test sessions that were killed before they could clean up."""
    for cluster in settings.existing():
        owner = cluster.name.removeprefix(_PREFIX).partition("-")[0]
        if cluster.name.startswith(_PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            lifecycle.down(cluster.name)


@contextlib.contextmanager
def _session_cluster(node: str, nodes: int) -> Iterator[ClusterHandle]:
    _take_down_stale()
    handle = ClusterHandle(f"{_PREFIX}{os.getpid()}-{node}")
    try:
        handle.run("up", "--node", node, "--nodes", str(nodes))
        yield handle
    finally:
        handle.run("down")


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """A command that silences a log does so for the rest of its process, which is the next test's too."""
    loggers = [logging.getLogger(name) for name in (None, "rljob_runtime", "kopf")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def real_nodes() -> Iterator[ClusterHandle]:
    if os.environ.get("KUBECONFIG"):
        pytest.skip("the power and the cables of the nodes behind $KUBECONFIG are not ours")
    if os.geteuid() != 0:
        pytest.skip("real nodes need root, or a cluster of your own in $KUBECONFIG")
    with _session_cluster("real", 3) as handle:
        yield handle


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    if given := os.environ.get("KUBECONFIG"):
        return Path(given)
    handle: ClusterHandle = request.getfixturevalue("real_nodes")
    return handle.kubeconfig


@pytest.fixture(scope="session")
def process_cluster() -> Iterator[ClusterHandle]:
    with _session_cluster("process", 3) as handle:
        yield handle


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[private.Server]:
    with private.api_server(tmp_path_factory.mktemp("apiserver")) as server:
        yield server
