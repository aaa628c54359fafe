"""History: what the audit finds in a job's store."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any


def check_volume(folder: Path) -> dict[str, Any]:
    """Return the verdict on the store below a folder; an object with `error` if there is none."""
    store = next(iter(sorted(folder.rglob("state.db"))), None)
    if store is None:
        return {"error": f"no state.db below {folder}"}
    done = subprocess.run(["rljob", "check", str(store), "--json"], capture_output=True, text=True, check=False)
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"error": done.stderr.strip()}
    return verdict
