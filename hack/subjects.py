"""Subjects: which commits are new, and the form of a commit's first line. `hack.words` checks them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

BASE = "ca9bfe6d88339d4a90160eed039a7afe4b146b44"
"""Later commits are checked. Earlier ones have other forms, and this one names the words that it refuses."""
LENGTH = 120
_FORM = re.compile(r"[a-z][a-z0-9_./-]*(, [a-z][a-z0-9_./-]*)*: (?P<summary>\S.*)")


def new_subjects(root: Path, base: str = BASE) -> list[str]:
    """List the subjects of commits that the base does not have, without merges; none outside of a repository.

    The base is a commit, so that branches and checkouts without one are the same. A shallow clone may lack it: then
    only `HEAD` is known to be later, because it has this module.
    """
    known = _git(root, "cat-file", "-e", f"{base}^{{commit}}") is not None
    found = _git(root, "log", "--no-merges", "--format=%s", *([f"{base}..HEAD"] if known else ["-1"]))
    return found.splitlines() if found else []


def malformed(subject: str) -> str | None:
    """Say what is wrong with the form of a subject, and what would be right."""
    form = _FORM.fullmatch(subject)
    if form is None:
        return "write `area: imperative summary`, as in `relay: repair the chain at both ends`"
    if form["summary"].endswith("."):
        return "write it without the period at its end"
    if len(subject) > LENGTH:
        return f"it has {len(subject)} characters; write at most {LENGTH}, and the rest in the body"
    return None


def subject_of(message: str) -> str | None:
    """Return the first line of a message that is being written; none for what git words itself (merge, fixup)."""
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith("#")]
    by_git = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
    return lines[0] if lines and not lines[0].startswith(by_git) else None


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints, or none if it fails or is absent."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
