"""The gateway, runners and the tool server are found in their pods by the words of their command lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from hack.chaos.faults.agents import GATEWAY_SECONDS, HANG, HUNG_SECONDS, KILL
from hack.chaos.faults.injector import Injector
from hack.chaos.faults.pods import NotPossible
from hack.chaos.rows import ROWS
from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from tests.support.chaos import HEALTHY


def state_of(process: subprocess.Popen[str]) -> str:
    """Return the state of a process, e.g. S (it sleeps) or T (it is stopped)."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def opened(fifo: Path) -> bool:
    """Say whether a process reads this FIFO, and end its reading."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def test_a_runner_is_stopped_and_goes_on_when_others_have_its_episodes(tmp_path: Path) -> None:
    """Its workers go on: they are not asked. The script returns before, so a campaign does not wait.

    A FIFO stands for the time that passes.
    """
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
    os.mkfifo(passed := tmp_path / "passed")
    timed = f"import time; time.sleep = lambda seconds: open({str(passed)!r}).read()\n{HANG}"
    try:
        inside = (sys.executable, "-c", timed, "1", "-m", module)
        done = subprocess.run(inside, capture_output=True, text=True, check=True, timeout=60)
        assert json.loads(done.stdout)["pids"] == [runner.pid]
        assert (state_of(runner), state_of(worker) != "T") == ("T", True)
        end = time.monotonic() + 60
        while state_of(runner) == "T":
            opened(passed)
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        opened(passed)
        for process in (runner, worker):
            process.kill()
            process.communicate()


def test_a_process_is_killed_by_its_words_and_not_the_one_that_kills() -> None:
    word = f"gateway-{uuid.uuid4().hex}"
    command = ["python", "-c", "import sys; sys.stdin.read()", word, "--config", "a.json"]
    gateway = subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE)
    try:
        inside = (sys.executable, "-c", KILL, word, "--config")
        done = subprocess.run(inside, capture_output=True, text=True, check=True, timeout=60)
        assert json.loads(done.stdout)["pids"] == [gateway.pid]
        assert gateway.wait(60) == -signal.SIGKILL
    finally:
        gateway.kill()
        gateway.communicate()


@pytest.mark.parametrize(
    ("row", "none"),
    [
        ("runner-hung", "no runner"),
        ("runner-deleted", "no runner"),
        ("runner-cut", "no runner"),
        ("tool-server-killed", "no tool server"),
        ("tool-server-hung", "no tool server"),
    ],
)
def test_what_is_not_there_is_not_hit(monkeypatch: pytest.MonkeyPatch, row: str, none: str) -> None:
    injector = Injector("no-job", "nowhere")
    monkeypatch.setattr(injector, "kubectl", lambda *args, **how: "")
    with pytest.raises(NotPossible, match=none):
        injector.inject(row, ("",), HEALTHY)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("gateway-killed", ["rljob_runtime.entrypoints", "gateway", "--config"]),
        ("gateway-hung", ["10.0", "rljob_runtime.entrypoints", "gateway", "--config"]),
        ("runner-hung", ["40.0", "-m", "rljob_env"]),
        ("tool-server-killed", ["python", "/code/tool_server.py"]),
        ("tool-server-hung", ["40.0", "python", "/code/tool_server.py"]),
    ],
)
def test_parts_of_agents_are_found_by_their_words(monkeypatch: pytest.MonkeyPatch, row: str, words: list[str]) -> None:
    injector, asked = Injector("no-job", "nowhere"), list[tuple[str, ...]]()

    def kubectl(*args: str, **how: object) -> str:
        asked.append(args)
        return "pod/one" if args[0] == "get" else '{"at": 7.0, "pids": [1]}'

    monkeypatch.setattr(injector, "kubectl", kubectl)
    assert injector.inject(row, ("coordinator-0",), HEALTHY).at == 7.0
    assert list(asked[-1][-len(words) :]) == words


def test_what_goes_on_by_itself_does_so_before_its_fault_is_over() -> None:
    for row, seconds in (("gateway-hung", GATEWAY_SECONDS), ("tool-server-hung", HUNG_SECONDS)):
        assert seconds < (ROWS[row].lasts or 0)
