"""`python -m rljob_runtime.entrypoints.pre_stop`: what a rollout or trainer pod does before it ends (its preStop hook).

Whoever deletes the pod starts this. The operator sees the deletion: it leaves a rollout machine out of its target, and
marks a trainer as leaving. The coordinator hands over what the machine generates, or has the trainer write a
checkpoint, and ends the actors. So this waits until no actor is left here, or no coordinator is there to hand over to;
the kubelet bounds it by the pod's grace.
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
"""How Ray titles a process of ours, by its class and perhaps a method. Its own processes have such titles too: idle
workers, and agents that live as long as the pod."""


def actors(proc: Path = Path("/proc")) -> list[str]:
    """Titles of the actors in this pod."""
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
    """Whether the coordinator's pod answers."""
    try:
        with socket.create_connection((host, port), timeout=seconds):
            return True
    except OSError:
        return False


def wait(busy: Callable[[], bool], heard: Callable[[], bool], sleep: Callable[[float], None] = time.sleep) -> str:
    """Until the machine is empty, or nobody is there to empty it; says which."""
    silent = 0
    while busy():
        silent = 0 if heard() else silent + 1
        if silent >= PRE_STOP_PATIENCE:
            return "no coordinator is there to hand over to"
        sleep(PRE_STOP_POLL_SECONDS)
    return "the machine is empty"


def main() -> int:
    """The hook's exit status is always 0: the pod ends either way."""
    host = os.environ.get(ENV_COORDINATOR_ADDRESS, "")
    print(f"drain: {wait(lambda: bool(actors()), lambda: bool(host) and reachable(host))}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
