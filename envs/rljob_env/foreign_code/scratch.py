"""Scratch: the folder below which a runner keeps what its programs write, and the removal of those of dead runners.

A runner that is killed removes nothing, and a pod's /tmp outlives its container. So each runner holds a lock as long as
it lives, and a new one removes the folders whose locks are free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX, LOCK, FOLDER = "rljob-env-runner-", ".lock", ".d"


@contextlib.contextmanager
def scratch_root() -> Iterator[Path]:
    """Yield a folder in which all temporary files of this process are while the context is open; remove it then.

    What dead runners of this user left beside it is removed first.
    """
    above = Path(tempfile.gettempdir())
    for lock in sorted(above.glob(f"{PREFIX}*{LOCK}")):
        _remove_if_free(lock)
    lock, holder = _locked(above)
    folder, before = lock.with_suffix(FOLDER), tempfile.tempdir
    try:
        folder.mkdir(mode=0o700)
        tempfile.tempdir = str(folder)
        yield folder
    finally:
        tempfile.tempdir = before
        _remove(folder)
        lock.unlink(missing_ok=True)
        os.close(holder)


def _locked(above: Path) -> tuple[Path, int]:
    """Return a new lock file with the descriptor that holds it."""
    while True:
        holder, name = tempfile.mkstemp(LOCK, PREFIX, above)
        with contextlib.suppress(OSError):
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another runner may have taken it for a dead one's, before it was locked.
            if os.fstat(holder).st_nlink:
                return Path(name), holder
        os.close(holder)


def _remove_if_free(lock: Path) -> None:
    """Remove the folder of a lock that no process holds. That of another user stays, and so does what is no folder."""
    with contextlib.suppress(OSError):
        holder = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(holder).st_uid == os.geteuid():
                _remove(lock.with_suffix(FOLDER))
                lock.unlink()
        finally:
            os.close(holder)


def _remove(folder: Path) -> None:
    """Remove a folder with all that is in it, also where a program took the rights from its own folders."""
    if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.geteuid():
        return
    for path, folders, _ in os.walk(folder):
        for name in folders:
            with contextlib.suppress(OSError):
                if not os.path.islink(inner := os.path.join(path, name)):
                    os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
