"""Completion of `kubectl rljob`: kubectl runs `kubectl_complete-rljob` with the words typed so far.

It prints a candidate a line, then a directive of kubectl's: a colon and a number."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys

from rljob_runtime.cli import app

PLUGIN = "kubectl-rljob"
NO_FILES = 4
"""There are candidates: do not offer the names of files."""
FILES = 0


def main() -> None:
    """Print the candidates for the last word of the command line, which may be empty."""
    words = sys.argv[1:] or [""]
    # The request of the plug-in's own completion in bash.
    os.environ |= {
        f"_{PLUGIN.replace('-', '_').upper()}_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join([PLUGIN, *words]),
        "COMP_CWORD": str(len(words)),
    }
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        app([], prog_name=PLUGIN)
    found = printed.getvalue().split()
    directive = NO_FILES if found else FILES
    print(*found, f":{directive}", sep="\n")
