"""Components: the images of Kubernetes' own components, as archives made of the programs built here."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from hack.local_cluster.nodes.images import Layer, write_archive
from hack.local_cluster.settings import ClusterError

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FOLDERS = {"coredns": "", "pause": ""}
"""Where a program lies in its image, if not in /usr/local/bin."""
_PROXY_NEEDS = ("xtables-nft-multi", "conntrack", "nft")
_IPTABLES = [f"{program}{suffix}" for program in ("iptables", "ip6tables") for suffix in ("", "-save", "-restore")]


def names(binaries: Path, version: str) -> dict[str, str]:
    """Component → the name of its image, as this kubeadm asks for it."""
    command = [str(binaries / "kubeadm"), "config", "images", "list", f"--kubernetes-version=v{version}"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {image.rpartition(":")[0].rpartition("/")[2]: image for image in listed}


def write(images: Mapping[str, str], binaries: Path, root: Path, folder: Path) -> None:
    """Write an archive for each component. ``root``: a node's files, from which kube-proxy gets iptables."""
    folder.mkdir(parents=True, exist_ok=True)
    for component, image in images.items():
        where = _FOLDERS.get(component, "usr/local/bin/")
        layer = Layer()
        layer.folders(["tmp"], 0o1777)
        layer.file(f"{where}{component}", (binaries / component).read_bytes(), 0o755)
        if component == "kube-proxy":
            _add_iptables(layer, root)
        config = {"Env": [_PATH], "Entrypoint": [f"/{where}{component}"]}
        write_archive(folder / f"{component}.tar", {image: config}, layer.bytes())


def libraries(listing: str) -> list[str]:
    """Return the files that ldd names: libraries and the loader."""
    return list(dict.fromkeys(re.findall(r"(/\S+) \(0x", listing)))


def _add_iptables(layer: Layer, root: Path) -> None:
    """iptables with its extensions, and the libraries that they load."""
    for name in ("bin", "sbin", "lib", "lib64"):
        layer.link(name, f"usr/{name}")
    wanted = [f"/usr/sbin/{name}" for name in _PROXY_NEEDS]
    wanted += [f"/{path.relative_to(root)}" for path in root.glob("usr/lib/*/xtables/*.so")]
    done = subprocess.run(["chroot", str(root), "ldd", *wanted], capture_output=True, text=True, check=True)
    _copy(layer, root, dict.fromkeys([*wanted, *libraries(done.stdout)]))
    for name in _IPTABLES:
        layer.link(f"usr/sbin/{name}", "xtables-nft-multi")


def _copy(layer: Layer, root: Path, paths: Iterable[str]) -> None:
    for path in paths:
        source = root / path.lstrip("/")
        if not source.exists():
            raise ClusterError(f"the node's files lack {path}")
        # /lib is a link to /usr/lib, in the image as in the node.
        target = path.lstrip("/") if path.startswith("/usr/") else f"usr{path}"
        layer.file(target, source.read_bytes(), 0o755)
