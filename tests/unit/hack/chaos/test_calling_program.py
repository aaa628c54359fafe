"""The program of long episodes asks the same again after what may pass, and does each calculation."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from hack.chaos.job import CODE, PROGRAM

LOST = -1
"""In place of a status: the connection ends without an answer."""


class Model:
    """A stand-in of the gateway on loopback: it answers with these statuses in their order, then always with a call."""

    def __init__(self, *statuses: int) -> None:
        self.bodies: list[dict[str, Any]] = []
        left, bodies, calls = list(statuses), self.bodies, iter(range(100))

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status = left.pop(0) if left else 200
                if status == LOST:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                function = {"name": "calculate", "arguments": json.dumps({"expression": f"{next(calls)}+1"})}
                calls_ = [{"id": "c", "type": "function", "function": function}]
                message = {"role": "assistant", "content": "", "tool_calls": calls_}
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps({"choices": [{"message": message}]} if status == 200 else {}).encode())

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the program and the calculator are, as in a pod."""
    for file in (PROGRAM, CODE):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "task.json").write_text(json.dumps({"messages": [{"role": "user", "content": "go"}]}))
    return tmp_path


def play(folder: Path, model: Model, turns: int) -> int:
    """Run the program; return its exit status."""
    env = os.environ | {
        "OPENAI_BASE_URL": model.url,
        "OPENAI_API_KEY": "key",
        "OPENAI_MODEL": "policy",
        "RLJOB_TASK": str(folder / "task.json"),
    }
    command = [sys.executable, PROGRAM.name, str(turns)]
    try:
        return subprocess.run(command, cwd=folder, env=env, timeout=60, check=False, capture_output=True).returncode
    finally:
        model.server.shutdown()
        model.server.server_close()


def test_each_turn_has_the_results_of_all_calls_before(folder: Path) -> None:
    model = Model()
    assert play(folder, model, 3) == 0
    assert [len(body["messages"]) for body in model.bodies] == [1, 3, 5]
    assert [one["content"] for one in model.bodies[-1]["messages"] if one["role"] == "tool"] == ["1", "2"]


@pytest.mark.parametrize("status", [LOST, 429, 503])
def test_a_request_without_an_answer_is_sent_again_as_it_was(folder: Path, status: int) -> None:
    model = Model(200, status)
    assert play(folder, model, 2) == 0
    first, second, again = model.bodies
    assert second == again != first


def test_a_refused_request_ends_the_program(folder: Path) -> None:
    """Its attempt has ended, so another request would be refused too."""
    model = Model(200, 410)
    assert play(folder, model, 2) != 0
    assert len(model.bodies) == 2
