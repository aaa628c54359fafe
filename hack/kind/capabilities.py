"""Capabilities: what containers cannot have on this machine, and the OCI runtime that does not ask for it.

Inside some containers and virtual machines even root lacks CAP_SYS_RESOURCE. runc then refuses every privileged
container, which asks for all capabilities. A process that raises a limit or lowers an out-of-memory score is refused
too.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

NAME = "CAP_SYS_RESOURCE"
_BIT = 24


def lacking(status: str | None = None) -> bool:
    """Whether processes here cannot have the capability. ``status``: the text of ``/proc/self/status``."""
    text = Path("/proc/self/status").read_text() if status is None else status
    found = re.search(r"^CapBnd:\s*([0-9a-f]+)", text, re.MULTILINE)
    return found is not None and not int(found[1], 16) >> _BIT & 1


def without(process: dict[str, Any]) -> dict[str, Any]:
    """Return the process of an OCI specification without the capability, and without what only it permits."""
    kept = {key: value for key, value in process.items() if key not in ("rlimits", "oomScoreAdj")}
    if kept.get("capabilities"):
        sets = kept["capabilities"].items()
        kept["capabilities"] = {key: [one for one in names if one != NAME] for key, names in sets}
    return kept


def runtime(runc: str | Path) -> str:
    """Return a script for Docker that takes the capability out of what is created or executed, and goes on as runc."""
    return f'#!/bin/sh\nexec "{sys.executable}" -I -S "{Path(__file__).resolve()}" "{runc}" "$@"\n'


def _rewrite(path: Path, *, inside: bool) -> None:
    """``inside``: the file is a specification that has the process inside."""
    content = json.loads(path.read_text())
    changed = {**content, "process": without(content["process"])} if inside else without(content)
    path.write_text(json.dumps(changed))


def main(argv: list[str]) -> None:
    runc, *words = argv
    if "create" in words and "--bundle" in words:
        _rewrite(Path(words[words.index("--bundle") + 1], "config.json"), inside=True)
    if "exec" in words and "--process" in words:
        _rewrite(Path(words[words.index("--process") + 1]), inside=False)
    os.execv(runc, [runc, *words])


if __name__ == "__main__":
    main(sys.argv[1:])
