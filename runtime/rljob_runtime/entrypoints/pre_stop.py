"""Pre-stop hook of rollout and trainer pods: waits until the coordinator has drained the pod.

    python -m rljob_runtime.entrypoints.pre_stop

The kubelet starts it when the pod is deleted. The operator observes the deletion: it removes a rollout machine from its
target, and marks a trainer as leaving. The coordinator moves the machine's responses, or makes the trainer write a
checkpoint, and ends the actors. The hook waits until no actor is left or the coordinator is unreachable. The pod's
grace period bounds it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rljob_api.constants import ENV_COORDINATOR_ADDRESS, PRE_STOP_PATIENCE, PRE_STOP_POLL_SECONDS, RAY_PORT

ACTOR = "ray::ActorHost"
"""Title that Ray gives our processes, from their class and perhaps a method. Ray's own processes have other titles:
idle workers, and agents with the life of the pod."""


def actors(proc: Path = Path("/proc")) -> list[str]:
    """Return the titles of the actors in this pod."""
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
            except OSError:  # it has just ended
                continue
            if title.partition(".")[0].rstrip() == ACTOR:
                found.append(title)
    return sorted(found)


def reachable(host: str, port: int = RAY_PORT, seconds: float = 1.0) -> bool:
    """Return whether the coordinator's pod answers."""
    try:
        with socket.create_connection((host, port), timeout=seconds):
            return True
    except OSError:
        return False


def wait(busy: Callable[[], bool], answers: Callable[[], bool], sleep: Callable[[float], None] = time.sleep) -> str:
    """Wait until the machine is empty or the coordinator is unreachable; return which."""
    silent = 0
    while busy():
        silent = 0 if answers() else silent + 1
        if silent >= PRE_STOP_PATIENCE:
            return "the coordinator is unreachable"
        sleep(PRE_STOP_POLL_SECONDS)
    return "the machine is empty"


def main() -> int:
    """Run the hook. The exit status is always 0, because the pod ends in any case."""
    host = os.environ.get(ENV_COORDINATOR_ADDRESS, "")
    print(f"drain: {wait(lambda: bool(actors()), lambda: bool(host) and reachable(host))}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
