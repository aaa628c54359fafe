"""What a container of a pod sees and may do, told by a program that runs in it."""

from __future__ import annotations

import json
from typing import Any

from tests.support.e2e.kubectl import Kubectl

CONFINED = {"variables": [], "capabilities": "0000000000000000", "root": False}
"""What is told of a container without the job's addresses and without rights."""

_SEEN = """
import json, os, pathlib, sys
status = pathlib.Path("/proc/self/status").read_text()
print(json.dumps({
    "sees": [one for one in sys.argv[1:] if pathlib.Path(one).exists() and any(pathlib.Path(one).iterdir())],
    "variables": sorted(name for name in os.environ if name.startswith(("RLJOB_", "RAY_"))),
    "capabilities": status.split("CapEff:")[1].split()[0],
    "root": os.getuid() == 0 or os.access("/", os.W_OK),
}))
"""


def seen(kubectl: Kubectl, pod: str, *places: str, container: str | None = None) -> dict[str, Any]:
    """Return which of these folders have something in them for a container, and its rights."""
    of = ("-c", container) if container is not None else ()
    told: dict[str, Any] = json.loads(kubectl("exec", pod, *of, "--", "python", "-c", _SEEN, *places))
    return told
