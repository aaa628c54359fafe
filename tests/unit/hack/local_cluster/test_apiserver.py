"""Which programs a private API server runs, and which of them are built."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.local_cluster.private import apiserver
from hack.local_cluster.programs import build, recipe
from hack.local_cluster.settings import ClusterError
from tests.support import minors
from tests.support.minors import Minor

BUILT = Path("/built")


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], str]]:
    """What was built, and of which minor."""
    asked: list[tuple[tuple[str, ...], str]] = []

    def binaries(wanted: tuple[str, ...], release: recipe.Release) -> Path:
        asked.append((wanted, release.minor))
        return BUILT

    monkeypatch.setattr(build, "binaries", binaries)
    monkeypatch.delenv("KUBERNETES", raising=False)
    monkeypatch.setattr(minors, "_OWN", recipe.MINORS[-1])
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return asked


@pytest.fixture
def assets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder as `setup-envtest` makes it."""
    for name in recipe.SERVER:
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    return tmp_path


def test_without_a_folder_of_ones_own_the_server_is_built(built: list[tuple[tuple[str, ...], str]]) -> None:
    newest = recipe.MINORS[-1]
    assert apiserver._programs(False, None) == BUILT
    assert apiserver._programs(True, None) == BUILT
    assert apiserver._programs(False, "1.35") == BUILT
    assert built == [(recipe.SERVER, newest), (recipe.CONTROL_PLANE, newest), (recipe.SERVER, "1.35")]
    assert apiserver.to_build() == recipe.SERVER
    assert Minor(newest).programs == (*recipe.SERVER, *recipe.TOOLS)


def test_a_folder_of_ones_own_is_used_and_nothing_is_built(
    assets: Path, built: list[tuple[tuple[str, ...], str]]
) -> None:
    assert apiserver._programs(False, None) == assets
    assert apiserver.to_build() == ()
    assert Minor(recipe.MINORS[-1]).programs == recipe.TOOLS
    assert built == []


@pytest.mark.usefixtures("assets")
def test_that_folder_serves_neither_controllers_nor_another_minor(built: list[tuple[tuple[str, ...], str]]) -> None:
    assert apiserver._programs(True, None) == BUILT
    assert apiserver._programs(False, "1.35") == BUILT
    assert built == [(recipe.CONTROL_PLANE, recipe.MINORS[-1]), (recipe.SERVER, "1.35")]
    assert Minor("1.35").programs == (*recipe.SERVER, *recipe.TOOLS)


def test_a_folder_without_a_server_is_refused(assets: Path) -> None:
    (assets / "etcd").chmod(0o644)
    with pytest.raises(ClusterError, match=f"KUBEBUILDER_ASSETS={assets} has no etcd"):
        apiserver._programs(False, None)
    assert apiserver.to_build() == recipe.SERVER
