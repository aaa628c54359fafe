"""Histories for tests of the audit: copies of stores with what their constraints refuse."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from rljob_runtime.audit import AuditResult, Rule


def broken(path: Path, folder: Path, *corruptions: str) -> Path:
    """Return a copy in which something was done that the store refuses."""
    copy = folder / "state.db"
    for suffix in ("", "-wal"):
        if (part := path.with_name(path.name + suffix)).is_file():
            shutil.copyfile(part, folder / ("state.db" + suffix))
    with closing(sqlite3.connect(copy, isolation_level=None)) as db:
        kinds = [
            *db.execute("SELECT type, name FROM sqlite_master WHERE type = 'trigger' OR sql LIKE 'CREATE UNIQUE%'")
        ]
        for kind, name in kinds:
            db.execute(f"DROP {kind} {name}")
        db.execute("PRAGMA ignore_check_constraints = ON")
        for corruption in corruptions:
            assert db.execute(corruption).rowcount > 0, corruption
    return copy


def expect(verdict: AuditResult, rule: Rule, key: str) -> None:
    """Assert that the audit found this."""
    found = [finding for finding in verdict.findings if finding.rule is rule and re.fullmatch(key, finding.key)]
    assert found, verdict.findings
