"""Files of the user: reads them, or reports in one line why it cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from rljob_api import InvalidSpec, RLJob, load
from rljob_api.parsing import text_file


class Unusable(Exception):
    """A file cannot be used; the message names it, and the line if there is one."""


def fail(message: str, code: int = 2) -> typer.Exit:
    """Print the message to stderr and return the exit to raise."""
    print(message, file=sys.stderr)
    return typer.Exit(code)


def read_text(file: Path) -> str:
    """Return the text of a file in UTF-8. Raises `Unusable`."""
    try:
        return text_file.read_text(file)
    except text_file.UnreadableText as error:
        raise Unusable(f"{file}: {error}") from None


def read_job(file: Path) -> RLJob:
    """Return the RLJob in a file. Raises `Unusable` with a line for each mistake."""
    with mistakes_of(file):
        return load(read_text(file))


@contextmanager
def mistakes_of(file: Path) -> Iterator[None]:
    """Raise `Unusable` with a line for each mistake of an `InvalidSpec`."""
    try:
        yield
    except InvalidSpec as error:
        raise Unusable("\n".join(f"{file}: {mistake}" for mistake in error.errors)) from None
