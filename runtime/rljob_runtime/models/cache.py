"""Model cache: builds a folder once, by one process at a time, completely or not at all.

The folder's name includes the version of its content.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rljob_runtime.models.errors import ModelError


def built_once(cache_dir: Path, name: str, build: Callable[[Path], None]) -> Path:
    """Return the folder `cache_dir/name`, and call `build(empty folder)` if it is absent.

    Other processes that need the same folder wait for the builder. A build that fails or dies leaves nothing under the
    name. Raises `ModelError` when the cache cannot be written.
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
            # A killed builder leaves its draft on the volume. This process holds the lock, so no other process uses it.
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
        # One user may fill a cache that another reads: pods run without root.
        for file in draft.iterdir():
            file.chmod(0o644)
        draft.chmod(0o755)
        draft.rename(target)
    except OSError as error:
        raise ModelError(f"{target} cannot be built: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
