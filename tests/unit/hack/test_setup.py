"""`hack/setup` finds a Python of a supported version, and says where torch comes from."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TOOLS = ("bash", "cat", "chmod", "cut", "dirname", "env", "id", "mkdir", "readlink", "sed", "sha256sum", "uname")


def _tree(folder: Path, pythons: dict[str, str]) -> None:
    """Make a checkout with a copy of the set-up, where these Pythons, scripts of stubs, are the only ones."""
    for name in ("pyproject.toml", "bench/pyproject.toml", "envs/pyproject.toml", "hack/overrides-cpu.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("torch==2.13.0\n")
    (folder / "hack/setup").write_text((ROOT / "hack/setup").read_text(encoding="utf-8"))
    bin_ = folder / "bin"
    bin_.mkdir()
    for tool in TOOLS:
        found = next(Path(part, tool) for part in os.defpath.split(":") if Path(part, tool).exists())
        (bin_ / tool).symlink_to(found)
    for name, script in pythons.items():
        (bin_ / name).write_text(f"#!/bin/bash\n{script}")
        (bin_ / name).chmod(0o755)


def _set_up(folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(folder / "hack/setup")]
    given = {"PATH": str(folder / "bin"), **environment}
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False)


def _checkout(folder: Path, pythons: dict[str, tuple[int, int]]) -> subprocess.CompletedProcess[str]:
    """Run the set-up where these Pythons, stubs of a version each, are the only ones.

    A stub answers what the version is, has no `venv`, and prints its name when it is to make one."""
    scripts = {
        name: f'[[ "$2" == *version_info* ]] && exit {0 if version in ((3, 11), (3, 12)) else 1}\n'
        '[[ "$2" == *ensurepip* ]] && exit 0\n'
        f'echo "{name} $*"; exit 7\n'
        for name, version in pythons.items()
    }
    _tree(folder, scripts)
    return _set_up(folder, {})


@pytest.mark.parametrize(
    ("pythons", "used"),
    [
        ({"python3.11": (3, 11), "python3.12": (3, 12), "python3": (3, 13)}, "python3.11"),
        ({"python3.12": (3, 12), "python3": (3, 13)}, "python3.12"),
        ({"python3": (3, 12)}, "python3"),
    ],
)
def test_the_first_supported_python_makes_the_environment(
    pythons: dict[str, tuple[int, int]], used: str, tmp_path: Path
) -> None:
    done = _checkout(tmp_path, pythons)
    assert done.stdout.splitlines() == ["setup: making .venv", f"{used} -m venv .venv"], done.stderr
    assert done.returncode == 7


@pytest.mark.parametrize("pythons", [{"python3": (3, 13)}, {}], ids=["newer", "none"])
def test_a_machine_without_a_supported_python_is_refused(pythons: dict[str, tuple[int, int]], tmp_path: Path) -> None:
    done = _checkout(tmp_path, pythons)
    assert done.returncode == 1
    assert "Python 3.11 or 3.12 is needed" in done.stderr
    assert "install python3.11 or python3.12" in done.stderr


PYTHON = """case "$*" in
  *'cp%d%d'*) echo cp312 ;;
  *'-m venv'*) mkdir -p .venv/bin; cat "$0" > .venv/bin/python; chmod +x .venv/bin/python ;;
  *'pip config get'*) [ -n "$OF_PIP" ] && echo "$OF_PIP" ;;
  *'pip install'*)
    printf '%s\\n' '#!/bin/bash' 'echo "$*" >> uv-calls' \
      'if [[ "$*" == *--dry-run* ]]; then exit "$NO_INDEX"; fi' > .venv/bin/uv
    chmod +x .venv/bin/uv ;;
esac
"""
"""Python 3.12 with pip, which can make a virtual environment, and install a uv that notes what it is told."""
HERE = platform.machine()
OURS = f"torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_{HERE}.whl"


def _torch(folder: Path, wheels: dict[str, str], *, index: bool, of_pip: bool = False) -> tuple[str, str]:
    """Set up with a wheel in each of these folders; return the line about torch, and how uv installs."""
    _tree(folder, {"python3": PYTHON})
    for name, wheel in wheels.items():
        (folder / name).mkdir()
        (folder / name / wheel).touch()
    links = " ".join(str(folder / name) for name in wheels)
    given = {"OF_PIP": links} if of_pip else {"OF_PIP": "", "PIP_FIND_LINKS": links}
    done = _set_up(folder, {"NO_INDEX": "0" if index else "1", **given})
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "torch" in line)
    return line, (folder / "uv-calls").read_text().splitlines()[-1]


@pytest.mark.parametrize("of_pip", [True, False], ids=["pip's configuration", "environment"])
@pytest.mark.parametrize("wheels", [{"a": OURS}, {"a": "other.whl", "b": OURS}], ids=["one folder", "two folders"])
def test_a_local_wheel_of_torch_comes_first(wheels: dict[str, str], of_pip: bool, tmp_path: Path) -> None:
    said, call = _torch(tmp_path, wheels, index=True, of_pip=of_pip)
    folder = tmp_path / [*wheels][-1]
    assert said == f"setup: torch 2.13.0 from the local CPU wheel in {folder} (4 GB installed, two minutes)"
    assert all(f"--find-links {tmp_path / name}" in call for name in wheels)
    assert "--torch-backend" not in call


@pytest.mark.parametrize(
    "wheel",
    [
        OURS.replace("cp312", "cp311"),
        OURS.replace("2.13.0", "2.12.0"),
        OURS.replace("+cpu", ""),
        OURS.replace(HERE, "s390x"),
    ],
)
@pytest.mark.parametrize(
    ("index", "said"),
    [
        (True, "PyTorch's index of CPU builds (4 GB installed, three minutes)"),
        (False, "PyPI, whose CUDA build runs on CPUs: PyTorch's index is not reached (7 GB installed, two minutes)"),
    ],
    ids=["index", "PyPI"],
)
def test_a_wheel_that_cannot_be_used_is_not_announced(wheel: str, index: bool, said: str, tmp_path: Path) -> None:
    told, call = _torch(tmp_path, {"a": wheel}, index=index)
    assert told == f"setup: torch 2.13.0 from {said}"
    assert ("--torch-backend cpu" in call) is index


def test_without_a_folder_of_wheels_the_index_is_asked(tmp_path: Path) -> None:
    told, call = _torch(tmp_path, {}, index=True)
    assert "PyTorch's index of CPU builds" in told
    assert "--find-links" not in call
