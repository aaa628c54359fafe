"""History: what the audit finds in a job's store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def check_volume(folder: Path) -> dict[str, Any]:
    """Return the verdict on the store below a folder; an object with `error` if there is none."""
    store = next(iter(sorted(folder.rglob("state.db"))), None)
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
