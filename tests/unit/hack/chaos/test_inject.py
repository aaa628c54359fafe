"""Whom a fault hits is found inside the pod, by what its processes are and hold."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.chaos import inject
from hack.chaos.inject import _ACTOR, CONTROLLERS, HANG_RUNNER, HUNG_SECONDS, Injector, NotPossible
from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from tests.support.chaos import HEALTHY

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
    """A machine of its own, so that no other processes are hit; its shared memory as the nodes give it."""
    name = f"rollout-{uuid.uuid4().hex}"
    folder = Path("/dev/shm") / f"rljob-{uuid.uuid4()}"
    (folder / name).mkdir(parents=True)
    (folder / name / "slot-0").write_bytes(bytes(4096))
    yield str(folder / name)
    shutil.rmtree(folder)


def host(*held: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["ray::ActorHost", "-c", MAPS, *held],
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


def test_a_pause_of_the_api_server_evicts_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controllers stand still with it, and until each kubelet has renewed its node's Lease."""
    story: list[str] = []

    class Component:
        def __init__(self, name: str) -> None:
            self._name = name

        def signal(self, number: int) -> None:
            story.append(f"{signal.Signals(number).name} {self._name}")

    times = iter(["", "2026-01-01T00:00:00.0Z 2999-01-01T00:00:00.0Z", "2999-01-01T00:00:00.0Z 2999-01-01T00:00:00.0Z"])

    def kubectl(*args: str, check: bool = True) -> str:
        story.append("look")
        return next(times)

    injector = Injector("no-job", "nowhere")
    monkeypatch.setattr(injector, "_component", Component)
    monkeypatch.setattr(injector, "kubectl", kubectl)
    monkeypatch.setattr(inject.time, "sleep", lambda seconds: None)
    injected = injector._api_paused((), None)  # type: ignore[arg-type]
    injected.undo()
    injected.undo()
    first = [f"SIGSTOP {CONTROLLERS}", "SIGSTOP kube-apiserver", "SIGCONT kube-apiserver", *["look"] * 3]
    assert story == [*first, f"SIGCONT {CONTROLLERS}", "SIGCONT kube-apiserver", f"SIGCONT {CONTROLLERS}"]


def state_of(process: subprocess.Popen[str]) -> str:
    """Return the state of a process, e.g. S (it sleeps) or T (it is stopped)."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_runner_is_stopped_and_goes_on_when_others_have_its_episodes() -> None:
    """Its workers go on: they are not asked. The script returns before, so a campaign does not wait."""
    assert RunnerRules().silence < HUNG_SECONDS
    module = f"rljob_env_{uuid.uuid4().hex}"
    runner, worker = (
        subprocess.Popen(
            ["python", "-c", "import sys; sys.stdin.read()", "-m", *more],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            text=True,
        )
        for more in ((module, "settings.json"), (f"{module}.foreign_code.worker_main", "/code"))
    )
    try:
        inside = (sys.executable, "-c", HANG_RUNNER, "3", module)
        done = subprocess.run(inside, capture_output=True, text=True, check=True, timeout=60)
        assert json.loads(done.stdout)["pids"] == [runner.pid]
        assert (state_of(runner), state_of(worker) != "T") == ("T", True)
        end = time.monotonic() + 60
        while state_of(runner) == "T":
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        for process in (runner, worker):
            process.kill()
            process.communicate()


def test_without_a_runner_there_is_none_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    injector = Injector("no-job", "nowhere")
    monkeypatch.setattr(injector, "kubectl", lambda *args, **how: "")
    for row in ("runner-hung", "runner-deleted"):
        with pytest.raises(NotPossible, match="no runner"):
            injector.inject(row, ("",), HEALTHY)
