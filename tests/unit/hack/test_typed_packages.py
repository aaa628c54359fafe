"""The packages carry their types: mypy of a user's code reads them."""

import tomllib

import pytest

from tests.support.paths import ROOT

PACKAGES = [
    "crds/rljob_api",
    "operator/rljob_kube",
    "operator/rljob_operator",
    "runtime/rljob_runtime",
    "bench/rljob_bench",
    "envs/rljob_env",
]
OWN_PROJECTS = ("bench", "envs")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_marked_as_typed_and_ships_the_mark(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
    folder = package.partition("/")[0]
    project = f"{folder}/pyproject.toml" if folder in OWN_PROJECTS else "pyproject.toml"
    data = tomllib.loads((ROOT / project).read_text())["tool"]["setuptools"]["package-data"]
    assert "py.typed" in data["*"]


def test_no_package_is_left_out() -> None:
    folders = ("crds", "operator", "runtime", "bench", "envs")
    found = {path.parent for folder in folders for path in (ROOT / folder).glob("*/__init__.py")}
    assert found == {ROOT / package for package in PACKAGES}
