"""Whom a fault hits is found inside the pod, by what its processes are and hold."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hack.chaos.inject import _ACTOR

MAPS = """
import mmap, sys
if len(sys.argv) > 1:
    file = open(sys.argv[1], "r+b")
    held = mmap.mmap(file.fileno(), 4096)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def machine() -> Iterator[str]:
    """A machine of its own, so that nobody else's processes are hit; its shared memory as the nodes give it."""
    name = f"rollout-{uuid.uuid4().hex}"
    folder = Path("/dev/shm") / f"rljob-{uuid.uuid4()}"
    (folder / name).mkdir(parents=True)
    (folder / name / "slot-0").write_bytes(bytes(4096))
    yield str(folder / name)
    shutil.rmtree(folder)


def host(*held: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["ray::Host", "-c", MAPS, *held],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


def test_a_relay_is_the_actor_that_writes_the_machines_weights(machine: str) -> None:
    relay, other = host(f"{machine}/slot-0"), host()
    try:
        inside = (sys.executable, "-c", _ACTOR, "relay", "0", Path(machine).name)
        found = json.loads(subprocess.run(inside, capture_output=True, text=True, check=True).stdout)
        assert found["pids"] == [relay.pid]
    finally:
        for process in (relay, other):
            process.kill()
            process.communicate()
