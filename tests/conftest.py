"""Clusters for all tests, from the most real to the quickest.

- ``kubeconfig``: the path of the kubeconfig of a cluster with real nodes: ``$KUBECONFIG`` where set, else that of
  ``real_nodes``.
- ``real_nodes``: a cluster with three real nodes, which can be switched off and cut off. It needs root, and is skipped
  with ``$KUBECONFIG``: nodes of others are not ours to switch.
- ``fake_nodes``: a private API server with the real scheduler and controllers, and four nodes whose kubelets kwok
  stands in for: pods have phases, but no container runs.
- ``kueue``: the same in a server of its own, and Kueue's real manager beside it. Quotas are the test's to make.
- ``apiserver``: a private etcd and kube-apiserver on loopback: nothing runs pods, nothing deletes namespaces.

Each is made at most once a session, for the first test that asks, and ends with the session. Use a namespace of your
own in each.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from hack.local_cluster import kube, lifecycle, settings
from hack.local_cluster.private import apiserver as private
from hack.local_cluster.private import kueue as queues
from hack.local_cluster.private import kwok
from hack.local_cluster.programs import build, recipe
from hack.loop import marked, suites
from hack.loop.order import pytest_collection_modifyitems, pytest_xdist_make_scheduler  # noqa: F401

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several processes compute at a time. Threads of torch that wait for each other would spin on the processors of
    # the others' threads: two processes with two threads each take three times as long as with one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The gate runs the same examples every time; the search for new ones goes on wherever people run the suite.
# Nowhere is an example judged by its seconds: the machine may be busy.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("here", deadline=None)
PROFILE = "ci" if os.environ.get("CI") else "here"
hypothesis.settings.load_profile(PROFILE)

# What assertions of helpers compare is shown as that of tests.
pytest.register_assert_rewrite("tests.support")
pytest_plugins = ["tests.support.minors"]

ROOT = Path(__file__).resolve().parents[1]
_PROGRAMS = {
    "kubeconfig": recipe.CLUSTER,
    "real_nodes": recipe.CLUSTER,
    "kueue_on_nodes": (*recipe.CLUSTER, "kueue"),
    "fake_nodes": (*recipe.CONTROL_PLANE, *recipe.TOOLS, "kwok"),
    "kueue": (*recipe.CONTROL_PLANE, *recipe.TOOLS, "kwok", "kueue"),
    "apiserver": (*private.to_build(), *recipe.TOOLS),
    "chart_cluster": (*recipe.CONTROL_PLANE, *recipe.TOOLS),
    "chart_nodes": (*recipe.CONTROL_PLANE, *recipe.TOOLS, "kwok"),
    "tools": recipe.TOOLS,
}
"""What has to be built for a fixture."""
_PREFIX = "pytest-"


@dataclass(frozen=True)
class ClusterHandle:
    """A cluster made for this session."""

    name: str

    @property
    def kubeconfig(self) -> Path:
        return settings.state_dir(self.name) / "admin.kubeconfig"

    @property
    def volumes(self) -> Path:
        """Folder of the volumes, by name."""
        return settings.state_dir(self.name) / "volumes"

    @property
    def api(self) -> kube.Api:
        return kube.Api(self.kubeconfig)

    def run(self, *args: str, timeout: float = 240) -> str:
        """A command of hack/local_cluster/cluster on this cluster; its output. Raises AssertionError on failure."""
        command = [sys.executable, str(ROOT / "hack/local_cluster/cluster"), "--name", self.name, *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"cluster {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    def node(self, action: str, index: int, *options: str) -> None:
        """kill, up, cut or join node ``index``."""
        self.run("node", action, str(index), *options)


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer examples where slow rows are left out, before any test module asks how many."""
    # Not before pytest rewrites the asserts of this package.
    from tests.support.examples import load_quick

    if suites.QUICK in (config.option.markexpr or ""):
        load_quick(PROFILE)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collections, and leave what is collected out of all later ones.

    It is two million objects that stay until the end, and each full collection takes a second to find that out.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Let unit tests not import a file of which all tests would be deselected."""
    expression = config.option.markexpr or ""
    unit = expression in (suites.UNIT, f"{suites.UNIT} and {suites.QUICK}")
    return True if unit and collection_path.suffix == ".py" and marked.is_of_a_part(collection_path) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse a test that `make test` would never run."""
    file = item.nodeid.partition("::")[0]
    if name := marked.hidden(file, lambda marker: item.get_closest_marker(marker) is not None):
        raise pytest.UsageError(f"{item.nodeid} has the marker {name}, but {file} does not name pytest.mark.{name}")
    built = sorted(_PROGRAMS.keys() & set(getattr(item, "fixturenames", ())))
    if built and not any(item.get_closest_marker(marker) for marker in marked.PARTS):
        # The tests without a marker run first, before anything is built.
        raise pytest.UsageError(f"{item.nodeid} needs {', '.join(built)}; mark it pytest.mark.cluster")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the tests need, once ever, before the first test's clock starts."""
    named = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    wanted = named & _PROGRAMS.keys()
    if os.environ.get("KUBECONFIG") or os.geteuid() != 0:
        wanted -= {"kubeconfig", "real_nodes", "kueue_on_nodes"}
        named -= {"oldest_kubelet"}
    builds: list[tuple[tuple[str, ...], recipe.Release | None]] = []
    if wanted:
        builds.append((tuple(dict.fromkeys(program for name in wanted for program in _PROGRAMS[name])), None))
    if "oldest_kubelet" in named:
        builds.append((recipe.NODES, recipe.release(recipe.oldest_kubelet())))
    builds = [(programs, release) for programs, release in builds if build.missing(programs, release)]
    if not builds or session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        try:
            for programs, release in builds:
                build.binaries(programs, release)
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
def _session_cluster(nodes: int) -> Iterator[ClusterHandle]:
    _take_down_stale()
    handle = ClusterHandle(f"{_PREFIX}{os.getpid()}-real")
    try:
        handle.run("up", "--nodes", str(nodes))
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
    with _session_cluster(3) as handle:
        yield handle


@pytest.fixture(scope="session")
def oldest_kubelet() -> str:
    """The oldest minor that nodes may have. Its programs were built before the first test."""
    return recipe.oldest_kubelet()


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    if given := os.environ.get("KUBECONFIG"):
        return Path(given)
    handle: ClusterHandle = request.getfixturevalue("real_nodes")
    return handle.kubeconfig


@pytest.fixture(scope="session")
def fake_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kwok.FakeNodes]:
    folder = tmp_path_factory.mktemp("fake-nodes")
    with private.api_server(folder, controllers=True) as server, kwok.fake_nodes(server, 4) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def kueue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[kwok.FakeNodes, queues.Manager]]:
    folder = tmp_path_factory.mktemp("kueue")
    with (
        private.api_server(folder, controllers=True) as server,
        kwok.fake_nodes(server, 4) as nodes,
        queues.manager(server) as manager,
    ):
        yield nodes, manager


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[private.Server]:
    with private.api_server(tmp_path_factory.mktemp("apiserver")) as server:
        yield server
