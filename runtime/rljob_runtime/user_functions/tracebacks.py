"""Tracebacks: the part of an error's traceback that is in the user's own code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path

import rljob_api
import rljob_runtime

_IMPORT_SYSTEM = ("<frozen importlib", "importlib/__init__.py")


def code_folders() -> list[str]:
    """Return the folders of our own packages, which are not among the installed ones in a source checkout."""
    found = (package.__file__ for package in (rljob_api, rljob_runtime))
    return sorted({str(Path(file).parents[1]) for file in found if file is not None})


def user_traceback(error: BaseException, ours: Sequence[str]) -> str:
    """Return the traceback of an error from the first frame of the user's code on.

    `ours` are folders of packages whose frames before that are left out.
    """
    kept = [frame for frame in _user_frames(error, ours) if not frame.filename.startswith(_IMPORT_SYSTEM[0])]
    head = ["Traceback (most recent call last):\n", *traceback.format_list(kept)] if kept else []
    return "".join([*head, *traceback.format_exception_only(error)])


def place_of(error: BaseException, ours: Sequence[str]) -> str | None:
    """Return the innermost place in the user's file as "file.py:12, in score", or None."""
    frames = _user_frames(error, ours)
    if not frames:
        return None
    frame = [one for one in frames if one.filename == frames[0].filename][-1]
    return f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"


def _user_frames(error: BaseException, ours: Sequence[str]) -> list[traceback.FrameSummary]:
    """Return the frames from the first one of the user's code on."""
    return list(dropwhile(lambda frame: _is_ours(frame.filename, ours), traceback.extract_tb(error.__traceback__)))


def _is_ours(file: str, ours: Sequence[str]) -> bool:
    return file.startswith(tuple(ours)) or any(part in file for part in _IMPORT_SYSTEM)


class Tracebacks:
    """Prints the traceback of an error to stderr, once for each place: an error repeats with every call."""

    def __init__(self, most: int = 20) -> None:
        self._ours = tuple(code_folders())
        self._most = most
        self._printed: set[str | None] = set()

    def print_once(self, label: str, error: BaseException) -> str:
        """Print the error if its place is new; return it in one line, with its place."""
        place = place_of(error, self._ours)
        if place not in self._printed and len(self._printed) < self._most:
            self._printed.add(place)
            print(f"{label}:\n{user_traceback(error, self._ours)}", end="", file=sys.stderr, flush=True)
        said = f"{type(error).__name__}: {error}"
        return said if place is None else f"{said} ({place})"
