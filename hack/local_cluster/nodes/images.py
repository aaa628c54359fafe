"""Container images without a registry: a pause image, and images whose files are the host's.

The runtime and the operator image are empty but for mount points and a marker file. Where the marker is, the
node's OCI runtime (:mod:`oci_runtime`) mounts /usr, the Python, the virtual environment and the checkout read-only.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.local_cluster.settings import OPERATOR_IMAGE, PAUSE_IMAGE, ROOT, RUNTIME_IMAGE, ClusterError

MARKER = ".rljob-host-mounts"
USER = 65532
ENTRYPOINTS = {
    RUNTIME_IMAGE: ["python", "-m", "rljob_runtime.entrypoints"],
    OPERATOR_IMAGE: ["python", "-m", "rljob_operator"],
}
"""As in the Dockerfile."""
_OCI = "application/vnd.oci.image"
_GO_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture() -> str:
    """Return this machine, as container images and Go name it."""
    return _GO_ARCH.get(platform.machine(), platform.machine())


class Layer:
    """A root file system, made in memory; everything belongs to root."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._buffer, mode="w")
        self._folders: set[str] = set()

    def _add(self, path: str, kind: bytes, mode: int, data: bytes = b"", link: str = "") -> None:
        self.folders([os.path.dirname(path)])
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.size, info.linkname = kind, mode, len(data), link
        self._tar.addfile(info, io.BytesIO(data))

    def folders(self, paths: Iterable[str], mode: int = 0o755) -> None:
        """Add the folders and, with mode 0755, their parents: any user may pass through to a mount point."""
        for path in paths:
            parts = Path(path.strip("/")).parts
            for depth in range(1, len(parts) + 1):
                name = "/".join(parts[:depth])
                if name in self._folders:
                    continue
                self._folders.add(name)
                info = tarfile.TarInfo(name)
                info.type, info.mode = tarfile.DIRTYPE, mode if depth == len(parts) else 0o755
                self._tar.addfile(info)

    def file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self._add(path, tarfile.REGTYPE, mode, data)

    def link(self, path: str, target: str) -> None:
        self._add(path, tarfile.SYMTYPE, 0o777, link=target)

    def bytes(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def write_archive(path: Path, names: Mapping[str, Mapping[str, Any]], layer: bytes) -> None:
    """Write an OCI archive of one layer, with an image for every name.

    ``names``: name → the image's config (Env, Entrypoint, …).
    """
    packed = gzip.compress(layer, 1, mtime=0)
    blobs, manifests = [packed], []
    for name, config in names.items():
        described = {
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
        config_blob = json.dumps(described).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _descriptor(config_blob, "config.v1+json"),
            "layers": [_descriptor(packed, "layer.v1.tar+gzip")],
        }
        manifest_blob = json.dumps(manifest).encode()
        blobs += [config_blob, manifest_blob]
        manifests.append({**_descriptor(manifest_blob, "manifest.v1+json"), "annotations": _annotations(name)})
    index = json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()
    with tarfile.open(path, "w") as tar:
        _put(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _put(tar, "index.json", index)
        for blob in {_digest(b): b for b in blobs}.items():
            _put(tar, f"blobs/sha256/{blob[0][7:]}", blob[1])


def _descriptor(blob: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _annotations(name: str) -> dict[str, str]:
    return {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def pause(path: Path, binary: Path) -> None:
    """Write the sandbox image with which every pod starts."""
    layer = Layer()
    layer.file("pause", binary.read_bytes(), 0o755)
    write_archive(path, {PAUSE_IMAGE: {"Entrypoint": ["/pause"]}}, layer.bytes())


def python_homes(python: Path) -> list[Path]:
    """Return the installations behind a virtual environment's ``python``, each step of its chain of links.

    Only those outside /usr and outside the environment: the others are mounted anyway.
    """
    homes, seen, at = [], set(), python
    venv = python.parent.parent
    while at.is_symlink() and at not in seen:
        seen.add(at)
        at = Path(os.path.normpath(at.parent / os.readlink(at)))
        homes.append(at.parent.parent)
    homes.append(at.resolve().parent.parent)
    return [h for h in dict.fromkeys(homes) if not h.is_relative_to("/usr") and h != venv and h != Path("/")]


def host_mounts(venv: Path, checkout: Path = ROOT) -> list[Path]:
    """Return what the pods see of the host: no path twice and none below another. Raises ClusterError when unusable."""
    python = venv / "bin" / "python"
    if not python.exists():
        raise ClusterError(f"{venv} has no bin/python: make the virtual environment first (make setup)")
    wanted = [Path("/usr"), checkout, venv, *python_homes(python)]
    mounts = [p for p in dict.fromkeys(wanted) if not any(p != q and p.is_relative_to(q) for q in wanted)]
    for path in (python.resolve(), venv / "pyvenv.cfg", checkout / "pyproject.toml", *mounts):
        # Parents above a mount point are the image's own, so only what is mounted has to be open to all.
        if path.exists() and not path.stat().st_mode & 0o004:
            raise ClusterError(f"{path} is not readable for others, so pods, which run as user {USER}, cannot use it")
    return mounts


def host_image(path: Path, venv: Path, mounts: Sequence[Path]) -> None:
    """Write the runtime and the operator image: one layer of mount points and the files that a C library requires."""
    layer = Layer()
    layer.folders(["etc", "proc", "sys", "dev", "run", "var/lib/rljob"])
    layer.folders(["tmp", "var/tmp"], 0o1777)
    layer.folders([str(m) for m in mounts])
    for name in ("bin", "sbin", "lib", "lib64"):
        layer.link(name, f"usr/{name}")
    layer.file(MARKER, b"")
    layer.file("etc/passwd", f"root:x:0:0::/root:/bin/sh\nrljob:x:{USER}:{USER}::/tmp:/bin/sh\n".encode())
    layer.file("etc/group", f"root:x:0:\nrljob:x:{USER}:\n".encode())
    layer.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    for name in ("ld.so.cache", "ld.so.conf", "localtime", "mime.types"):
        if (source := Path("/etc") / name).is_file():
            layer.file(f"etc/{name}", source.read_bytes())
    alternatives = Path("/etc/alternatives")
    for link in alternatives.iterdir() if alternatives.is_dir() else ():
        if link.is_symlink():
            layer.link(f"etc/alternatives/{link.name}", os.readlink(link))
    env = [f"PATH={venv}/bin:/usr/local/bin:/usr/bin:/usr/sbin", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1"]
    config: dict[str, Any] = {"Env": env, "User": f"{USER}:{USER}", "WorkingDir": "/tmp"}
    images = {name: {**config, "Entrypoint": entry} for name, entry in ENTRYPOINTS.items()}
    write_archive(path, images, layer.bytes())
