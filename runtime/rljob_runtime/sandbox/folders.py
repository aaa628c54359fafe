"""The folders that programs leave behind: counted, and removed however deep they are."""

from __future__ import annotations

import itertools
import os
import stat


def count_entries(folder: str, enough: int) -> int:
    """Files and folders below `folder`, counting no further than one past `enough`."""
    found, unseen = 0, [folder]
    while unseen and found <= enough:
        try:
            with os.scandir(unseen.pop()) as entries:
                for entry in itertools.islice(entries, enough + 1 - found):
                    found += 1
                    if entry.is_dir(follow_symlinks=False):
                        unseen.append(entry.path)
        except OSError:  # removed or made unreadable under our eyes; a path too long ends at `enough` anyway
            continue
    return found


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
