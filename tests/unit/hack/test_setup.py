"""`hack/setup` finds a Python of a supported version, and refuses others with what would be right."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TOOLS = ("bash", "cat", "cut", "dirname", "env", "id", "readlink", "sha256sum")


def _checkout(folder: Path, pythons: dict[str, tuple[int, int]]) -> subprocess.CompletedProcess[str]:
    """Run a copy of the set-up where these Pythons, stubs of a version each, are the only ones.

    A stub answers what the version is, has no `venv`, and prints its name when it is to make one."""
    for name in ("pyproject.toml", "bench/pyproject.toml", "envs/pyproject.toml", "hack/overrides-cpu.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    (folder / "hack/setup").write_text((ROOT / "hack/setup").read_text(encoding="utf-8"))
    bin_ = folder / "bin"
    bin_.mkdir()
    for tool in TOOLS:
        found = next(Path(part, tool) for part in os.defpath.split(":") if Path(part, tool).exists())
        (bin_ / tool).symlink_to(found)
    for name, version in pythons.items():
        supported = version in ((3, 11), (3, 12))
        (bin_ / name).write_text(
            "#!/bin/bash\n"
            f'[[ "$2" == *version_info* ]] && exit {0 if supported else 1}\n'
            '[[ "$2" == *ensurepip* ]] && exit 0\n'
            f'echo "{name} $*"; exit 7\n'
        )
        (bin_ / name).chmod(0o755)
    command = ["bash", str(folder / "hack/setup")]
    return subprocess.run(command, env={"PATH": str(bin_)}, capture_output=True, text=True, check=False)


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
