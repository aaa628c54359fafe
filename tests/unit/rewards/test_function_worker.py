"""A reward worker by itself: what it does about a pool that it does not understand."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from rljob_runtime.rewards.function_worker import LENGTH_BYTES, frame
from rljob_runtime.rewards.rules import Rule


def test_a_worker_that_cannot_read_a_request_ends() -> None:
    """Without the reading thread, no later request would be answered."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "rljob_runtime.rewards.function_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(frame((Rule("number", "rljob_runtime.rewards.builtin:has_number"),)))
        worker.stdin.flush()
        assert json.loads(worker.stdout.readline()) == {"ready": True}
        worker.stdin.write((4).to_bytes(LENGTH_BYTES, "little") + b"none")
        worker.stdin.flush()
        assert worker.wait(60) == 1
        assert worker.stderr is not None
        assert b"UnpicklingError" in worker.stderr.read()
    finally:
        worker.kill()
        for stream in (worker.stdin, worker.stdout, worker.stderr):
            if stream is not None:
                stream.close()
