"""History: what the audit finds in a job's store."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from rljob_runtime.scheduling.episodes.ends import NO_FAILURES


def store_below(folder: Path) -> Path | None:
    """Return the store below a folder; None if there is none."""
    return next(iter(sorted(folder.rglob("state.db"))), None)


def check_volume(folder: Path) -> dict[str, Any]:
    """Return the verdict on the store below a folder; an object with `error` if there is none."""
    store = store_below(folder)
    if store is None:
        return {"error": f"no state.db below {folder}"}
    # Beside the interpreter: it need not be on the PATH, and a campaign must not end without its verdict.
    command = str(Path(sys.executable).with_name("rljob"))
    done = subprocess.run([command, "check", str(store), "--json"], capture_output=True, text=True, check=False)
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"error": done.stderr.strip()}
    return verdict


def interrupted_episodes(folder: Path) -> int:
    """Return the attempts of episodes that another runner went on with, or that a failure ended; 0 without a store."""
    store = store_below(folder)
    if store is None:
        return 0
    allowed = ", ".join("?" * len(NO_FAILURES))
    query = (
        "SELECT COUNT(*) FROM episodes WHERE ifnull(resumption, 0) > 0"
        f" OR (state = 'aborted' AND ifnull(cause, '') NOT IN ({allowed}))"
    )
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as db:
        return int(db.execute(query, [str(cause) for cause in NO_FAILURES]).fetchone()[0])
