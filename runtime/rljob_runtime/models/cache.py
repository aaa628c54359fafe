"""Folders that are built once: by one process at a time, whole or not at all, under a name that holds their version."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rljob_runtime.models.errors import ModelError


def built_once(cache_dir: Path, name: str, build: Callable[[Path], None]) -> Path:
    """The folder `cache_dir/name`, calling `build(empty folder)` if it is not there yet.

    Others who want the same folder wait for the builder. A build that fails or dies leaves nothing under the name.
    Raises `ModelError` when the cache cannot be written.
    """
    target = cache_dir / name
    if target.is_dir():
        return target
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(cache_dir / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ModelError(f"the model cache {cache_dir} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            # A builder that was killed left its draft, and a volume keeps it. No one else is at it: the lock is ours.
            for draft in cache_dir.glob(f".{name}.*/"):
                shutil.rmtree(draft, ignore_errors=True)
            _build(cache_dir, target, build)
    finally:
        os.close(lock)
    return target


def _build(cache_dir: Path, target: Path, build: Callable[[Path], None]) -> None:
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=cache_dir))
    try:
        build(draft)
        # A cache may be filled by one user and read by another: pods run without root.
        for file in draft.iterdir():
            file.chmod(0o644)
        draft.chmod(0o755)
        draft.rename(target)
    except OSError as error:
        raise ModelError(f"{target} cannot be built: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
