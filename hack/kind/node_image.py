"""Node image: made for kind on this machine, once for each Kubernetes version, and kept in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hack.local_cluster.programs import build, recipe
from hack.local_cluster.settings import ClusterError, locked

from . import capabilities, components, node_root
from .shell import home, logged

REPOSITORY = "rljob.local/kind-node"
_CHANGES = ('ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]', "ENV container=docker")
"""As in kind's Dockerfile."""


def key(release: recipe.Release) -> str:
    """Names what goes into the image."""
    digest = hashlib.sha256(f"{release.key()} {recipe.KIND.key()} {capabilities.lacking()}".encode())
    for path in (Path(node_root.__file__), Path(components.__file__), *sorted(node_root.FILES.iterdir())):
        digest.update(path.read_bytes())
    return f"{release.version}-{digest.hexdigest()[:10]}"


def ensure(release: recipe.Release, say: Callable[[str], None]) -> str:
    """Have the image in the Docker engine; its name. Raises ClusterError."""
    name = f"{REPOSITORY}:v{key(release)}"
    if _docker("image", "inspect", name) == 0:
        return name
    root = _root(release, say)
    say(f"{name} is given to Docker")
    packer = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
    changes = [word for change in _CHANGES for word in ("--change", change)]
    taken = subprocess.run(
        ["docker", "import", *changes, "-", name], stdin=packer.stdout, capture_output=True, text=True, check=False
    )
    if packer.wait() or taken.returncode:
        raise ClusterError(f"docker import: {taken.stderr.strip()}")
    return name


def _root(release: recipe.Release, say: Callable[[str], None]) -> Path:
    """Return the folder with the node's files, made first when it is not there yet; older ones of the version go."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ClusterError("no registry has a node image for kind; to make one takes root on Linux")
    root = home() / "nodes" / key(release)
    with locked("kind-node", 3600, "another process makes the node image; waiting for it"):
        if root.exists():
            return root
        binaries = build.binaries(recipe.KIND_NODE, release)
        log = home() / "node.log"
        say(f"a node image of Kubernetes {release.version} is made once, some minutes; log: {log}")
        part = root.with_name(f".{root.name}.part")
        for old in [part, *root.parent.glob(f"{release.version}-*")]:
            shutil.rmtree(old, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        node_root.make(part, release, binaries, logged(log))
        part.replace(root)
    return root


def _docker(*words: str) -> int:
    return subprocess.run(["docker", *words], capture_output=True, check=False).returncode
