"""A coordinator's pod that has lost its Lease starts over, and one that comes up waits for what another head holds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from rljob_runtime.entrypoints.ray_node import tables_held

IDENTITY = {
    "RLJOB_NAME": "demo",
    "RLJOB_NAMESPACE": "ns",
    "RLJOB_UID": "uid-1",
    "RLJOB_MACHINE": "coordinator-0",
    "RLJOB_INCARNATION": "1",
    "RLJOB_COORDINATOR_ADDRESS": "demo-coordinator.ns.svc",
    "POD_NAME": "demo-coordinator-0-1",
    "POD_IP": "10.0.0.7",
}
PATIENCE = 30.0
PROGRAM = """
import os, pathlib, socket, sys
import rljob_runtime.entrypoints.__main__ as pod
from rljob_runtime.coordinator.control_plane.lease import LeaseLost

lives = pathlib.Path(sys.argv[2])
with lives.open("a") as file:
    file.write(f"{os.getpid()}\\n")

async def run(role, identity):
    if len(lives.read_text().split()) == 1:
        raylet = socket.create_connection(("127.0.0.1", int(os.environ["RAYLET"])))
        raylet.set_inheritable(True)  # as Ray's are
        raylet.detach()
        raise LeaseLost("the Lease was not renewed for 15 s")
    sys.stdin.readline()
    return 0

pod._run, sys.argv = run, sys.argv[:2]
sys.exit(pod.main())
"""
HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_lost_lease_starts_the_program_over_in_its_pod(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    command = [sys.executable, "-c", PROGRAM, "coordinator", str(lives)]
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        environment = os.environ | IDENTITY | {"RAYLET": str(raylet.getsockname()[1])}
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            raylet.settimeout(PATIENCE)
            driver, _ = raylet.accept()
            with driver:
                driver.settimeout(PATIENCE)
                assert driver.recv(1) == b"", "a process with the other end would take the driver for alive"
            _, said = program.communicate("end\n", PATIENCE)
    assert program.returncode == 0, said
    first, second = lives.read_text().split()
    assert first == second, "the same process, so the same container: it costs no pod"
    assert "the Lease was not renewed for 15 s; it restarts and waits" in said


def test_rays_tables_are_held_as_long_as_their_process_lives(tmp_path: Path) -> None:
    assert tables_held(tmp_path / "nothing yet") is None
    lock = tmp_path / "ray" / "db" / "LOCK"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert tables_held(tmp_path / "ray") is None
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert tables_held(tmp_path / "ray") == lock
        holder.kill()
    assert tables_held(tmp_path / "ray") is None
