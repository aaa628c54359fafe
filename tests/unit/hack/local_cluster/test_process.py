"""Processes by pid and start time."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest

from hack.local_cluster import process
from hack.local_cluster.process import Daemons, Process
from hack.local_cluster.settings import ROOT

STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]


@pytest.fixture
def daemons(tmp_path):
    made = Daemons(tmp_path / "pids", tmp_path / "logs")
    yield made
    made.stop(made.names(), grace=0)


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_reused_pid_is_another_process():
    own = Process.of(os.getpid())
    assert own.alive
    stranger = dataclasses.replace(own, started=own.started - 1)
    assert not stranger.alive
    stranger.signal(signal.SIGKILL)  # this test would not go on


def test_zombies_are_dead():
    child = subprocess.Popen(["true"])
    wait_until(lambda: process.start_ticks(child.pid) is None)
    assert Process.of(child.pid) is None
    child.wait()


def test_stop_kills_who_ignores_sigterm(daemons):
    started = daemons.start("stubborn", STUBBORN)
    wait_until(lambda: "ready" in daemons.tail("stubborn"))
    assert daemons.get("stubborn") == started
    daemons.stop(["stubborn", "never-started"], grace=0.2)
    wait_until(lambda: not started.alive)  # `stop` waits for its grace only, and the kernel takes its time
    assert daemons.names() == []


def test_both_outputs_go_to_the_log(daemons):
    daemons.start("hello", ["sh", "-c", "echo out; echo err >&2; sleep 60"])
    wait_until(lambda: "err" in daemons.tail("hello"))
    assert daemons.log("hello").read_text() == "out\nerr\n"


TIED = """
import os, sys, time
from pathlib import Path
sys.path.append(sys.argv[2])
from hack.local_cluster.process import Daemons
folder = Path(sys.argv[1])
print(Daemons(folder, folder, tied=True).start("sleep", ["sleep", "300"]).pid, flush=True)
time.sleep(300)
"""


def test_tied_processes_die_with_who_started_them(tmp_path):
    starter = subprocess.Popen(
        [sys.executable, "-c", TIED, str(tmp_path), str(ROOT)], stdout=subprocess.PIPE, text=True
    )
    child = Process.of(int(starter.stdout.readline()))
    wait_until(lambda: os.readlink(f"/proc/{child.pid}/exe").endswith("sleep"))
    starter.kill()
    starter.communicate()
    wait_until(lambda: not child.alive)


def test_free_ports_differ():
    assert len(set(process.free_ports(20))) == 20
