"""Scratch folders: counts and removes the files that programs leave, at any depth."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a folder that was removed meanwhile, or is no folder any more."""
_SHUT = (errno.EACCES, errno.EPERM, errno.EMFILE)
"""Errors of a folder that cannot be opened, or of more open folders than the process can hold."""


def count_entries(folder: str, enough: int) -> int:
    """Count files and folders below `folder`, up to one more than `enough`.

    A folder that cannot be opened counts as more than enough: nothing may hide in it. Raises `OSError`.
    """
    found = 0
    # Each folder is opened relative to its parent, because its path may be too long for the kernel. The list holds open
    # folders and their unopened subfolders. A folder is closed when none is left, so a deep tree does not hold many
    # descriptors.
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
    """Open the folder `name` of the open folder `above`, or return None if it is gone.

    A folder that its owner may not read is made readable: we are the same user, and root ignores modes.
    """
    try:
        try:
            return os.open(name, _FOLDER, dir_fd=above)
        except PermissionError:
            handle = os.open(name, _FOLDER | os.O_PATH, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)  # the name could now be a link to another place
            return os.open(".", _FOLDER, dir_fd=handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def remove(folder: str) -> None:
    """Remove a folder whose processes have all ended.

    Deep trees are flattened first: ten thousand nested folders would exceed the longest path and the stack.
    """
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
