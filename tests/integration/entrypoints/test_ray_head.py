"""Ray's head and its driver as in two containers: neither sees the processes of the other."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_runtime.entrypoints.ray_node import tables_held

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

APART = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]

HEAD = """
import asyncio, os, sys
from pathlib import Path
from rljob_runtime.entrypoints import ray_head, ray_node

folder, port = Path(sys.argv[1]), int(sys.argv[2])
os.environ.update(ray_node.environment(folder / "token", folder / "tables"))
ray_node.RAY_PORT = port

def command(ip):
    return [*ray_node.head_command(ip), f"--temp-dir={folder / 'ray'}"]

asyncio.run(ray_head.run("127.0.0.1", ray_head.HeadFolder(folder / "ray"), command))
"""
DRIVER = """
import asyncio, os, sys
from pathlib import Path
from rljob_runtime.entrypoints.ray_node import environment

folder, port = Path(sys.argv[1]), int(sys.argv[2])
os.environ.update(environment(folder / "token", None))
import ray
from rljob_runtime.entrypoints import coordinator as pod
from rljob_runtime.entrypoints.pod_env import Identity
from rljob_runtime.entrypoints.ray_head import HeadClient, HeadFolder

pod.RAY_PORT = port
identity = Identity("demo", "ns", "uid-1", "coordinator-0", 1, "demo-coordinator-0-1", "127.0.0.1", "demo")

async def connect():
    head = HeadClient(HeadFolder(folder / "ray"))
    run, connected = asyncio.create_task(head.run()), asyncio.create_task(pod._connect(identity, head))
    await asyncio.wait({run, connected}, return_when=asyncio.FIRST_COMPLETED)
    if run.done():
        os._exit(7)  # its own log says why
    await connected
    print(ray.get_runtime_context().get_node_id() == head.node_id, len(ray.get(ray.put(b"x" * 3_000_000))), flush=True)
    if sys.argv[3] == "wait":
        await run
        print(head.up, flush=True)
        os._exit(0)  # as the coordinator: a head that has ended answers no goodbye
    ray.shutdown()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    print(head.up, flush=True)

asyncio.run(connect())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: Ray has its sockets below it."""
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("namespaces of processes take root here")
    made = Path(tempfile.mkdtemp(prefix="rh", dir="/tmp"))
    (made / "token").write_text("0123456789abcdef" * 4)
    (made / "ray").mkdir()
    (made / "tables").mkdir()
    yield made
    shutil.rmtree(made)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _head(folder: Path, port: str) -> subprocess.Popen[bytes]:
    with (folder / "log").open("w") as log:
        return subprocess.Popen([*APART, sys.executable, "-c", HEAD, str(folder), port], stdout=log, stderr=log)


def test_a_driver_finds_a_head_in_another_container_and_ends_with_it(folder: Path) -> None:
    """A coordinator that starts over has a head of its own, which takes up the tables. When that one is killed, Ray
    alone would go on trying for as long as engines live without a head."""
    port = str(_free_port())
    head = _head(folder, port)
    command = [*APART, sys.executable, "-c", DRIVER, str(folder), port]
    driver = subprocess.Popen([*command, "go"], stdout=subprocess.PIPE, text=True)
    try:
        said, _ = driver.communicate(timeout=280)
        assert said.split() == ["True", "3000000", "False"], (folder / "log").read_text()
        assert tables_held(folder / "tables") is None, "they are free for the next one"
        assert head.poll() is None, "the container goes on"

        driver = subprocess.Popen([*command, "wait"], stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None
        assert driver.stdout.readline().split() == ["True", "3000000"], (folder / "log").read_text()
        for name in ("gcs_server", "raylet"):
            os.kill(_process_of(folder, name), signal.SIGKILL)
        told = driver.stdout.readline()
        # Ray ends the process of a driver itself, if it is the first to notice the death of the raylet.
        assert told in ("False\n", "")
        assert (driver.wait(120) == 0) == bool(told)
        assert head.wait(60) != 0, "its container ends too, and is started again"
    finally:
        for process in (driver, head):
            process.kill()
            process.wait(20)


def _process_of(folder: Path, program: str) -> int:
    """Of the head in this folder: the process that runs one of Ray's programs."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has ended
            continue
        if command[0].endswith(f"/{program}") and any(str(folder) in part for part in command):
            return int(process.name)
    raise AssertionError(f"no {program} runs in {folder}")
