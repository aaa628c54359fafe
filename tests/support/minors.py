"""API servers of every Kubernetes minor that is supported, for tests of what depends on the server alone.

A test that asks for ``minor`` or ``minor_server`` runs on the minor at hand (``$KUBERNETES``, else the newest). With
``-m all_minors`` it runs on each of the others instead, which are built first. Import all five names into a conftest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hack.local_cluster.private import apiserver as private
from hack.local_cluster.programs import build, recipe

_OWN = os.environ.get("KUBERNETES") or recipe.MINORS[-1]
_OTHERS = [minor for minor in recipe.MINORS if minor != _OWN]


@dataclass(frozen=True)
class Minor:
    """A Kubernetes minor, and where its programs are."""

    name: str

    @property
    def own(self) -> bool:
        """Whether it is the one at hand, which may come from elsewhere."""
        return self.name == _OWN

    @property
    def programs(self) -> tuple[str, ...]:
        """What a test needs: a server, unless one is given, and kubectl and Helm of the same version."""
        return (*(private.to_build() if self.own else recipe.SERVER), *recipe.TOOLS)

    def tools(self) -> Path:
        """The folder of kubectl and Helm, as this minor has them."""
        return build.binaries(recipe.TOOLS, recipe.release(self.name))

    @contextlib.contextmanager
    def server(self, parent: Path) -> Iterator[private.Server]:
        """An API server of this minor: no controllers, no nodes."""
        with private.api_server(parent, kubernetes=None if self.own else self.name) as server:
            yield server


@pytest.fixture(
    scope="session",
    params=[_OWN, *(pytest.param(minor, marks=pytest.mark.all_minors) for minor in _OTHERS)],
)
def minor(request: pytest.FixtureRequest) -> Minor:
    return Minor(request.param)


@pytest.fixture(scope="session")
def minor_server(
    minor: Minor, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[private.Server]:
    """The session's API server of that minor."""
    if minor.own:
        yield request.getfixturevalue("apiserver")
        return
    with minor.server(tmp_path_factory.mktemp(f"apiserver-{minor.name}")) as server:
        yield server


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other minors out, unless `-m` asks for them: each is a build of minutes."""
    if "all_minors" in config.option.markexpr:
        return
    own: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (others if item.get_closest_marker("all_minors") else own).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = own


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the tests need, before the first test's clock starts."""
    if session.config.option.collectonly:
        return
    # A test without a server may have a parameter of this name.
    on_server = [item for item in session.items if item.get_closest_marker("cluster")]
    asked = {_parameters(item)["minor"] for item in on_server if "minor" in _parameters(item)}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    for found in map(Minor, sorted(asked)):
        if build.missing(found.programs, recipe.release(found.name)):
            with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                build.binaries(found.programs, recipe.release(found.name))


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
