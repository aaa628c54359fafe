"""The folders that programs leave behind: counted, and removed however deep they are."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Removed under our eyes, or no folder any more."""
_SHUT = (errno.EACCES, errno.EPERM, errno.EMFILE)
"""Not to be entered, or in so many branches that we cannot hold them."""


def count_entries(folder: str, enough: int) -> int:
    """Files and folders below `folder`, counting no further than one past `enough`. One that stays shut to us counts as
    more than enough: nothing may hide in it. Raises `OSError`."""
    found = 0
    # Each folder is opened from the one that it lies in, since its path may be too long for the kernel. These are open,
    # with what in them is still to be opened; one is closed when nothing is, so that their number is no tree's depth.
    held: list[tuple[int, list[str]]] = [(os.open(folder, _FOLDER), ["."])]
    try:
        while held and found <= enough:
            above, names = held[-1]
            here = _open(names.pop(), above)
            if not names:
                os.close(held.pop()[0])
            if here is None:
                continue
            held.append((here, below := []))
            with contextlib.suppress(FileNotFoundError), os.scandir(here) as entries:
                for entry in itertools.islice(entries, enough + 1 - found):
                    found += 1
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
            if not below:
                os.close(held.pop()[0])
    except OSError as error:
        if error.errno not in _SHUT:
            raise
        found = enough + 1
    finally:
        for descriptor, _ in held:
            os.close(descriptor)
    return found


def _open(name: str, above: int) -> int | None:
    """The folder `name` in the one that is open as `above`; None if it is gone. One that its owner may not read is made
    readable: we are the same user, and root is stopped by no mode."""
    try:
        try:
            return os.open(name, _FOLDER, dir_fd=above)
        except PermissionError:
            handle = os.open(name, _FOLDER | os.O_PATH, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)  # by its name it might by now be a link to elsewhere
            return os.open(".", _FOLDER, dir_fd=handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def remove(folder: str) -> None:
    """Remove a folder of which no process is left. Deep trees are flattened first: a program that makes ten thousand
    folders in each other must not take us past the length of a path or the depth of a stack."""
    numbers = itertools.count()
    while children := [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]:
        for child in children:
            os.chmod(child, stat.S_IRWXU)
            for entry in list(os.scandir(child)):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, stat.S_IRWXU)
                    os.rename(entry.path, _unused(folder, numbers))
                else:
                    os.unlink(entry.path)
            os.rmdir(child)
    for entry in list(os.scandir(folder)):
        os.unlink(entry.path)
    os.rmdir(folder)


def _unused(folder: str, numbers: itertools.count[int]) -> str:
    while os.path.lexists(name := os.path.join(folder, f"up-{next(numbers)}")):
        pass
    return name
