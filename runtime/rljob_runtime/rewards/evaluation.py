"""Isolated evaluation: evaluates one text of a model in its own process.

The process is forked from a worker that has loaded the rules. It gives up all rights, evaluates, and is killed. Changes
that the text makes there end with the process, and it has no channel to the answers of other texts.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from rljob_runtime.sandbox.confine_self import confine_this_process
from rljob_runtime.sandbox.landlock import Access
from rljob_runtime.sandbox.program import SandboxUnavailable
from rljob_runtime.sandbox.resource_usage import address_space
from rljob_runtime.sandbox.syscalls import PR_SET_PDEATHSIG, prctl

LONGEST_ANSWER_BYTES = 1 << 16
KEYS = frozenset({"value", "raised", "unavailable"})
"""Keys of a process's answer. An answer has exactly one of them."""

Json = dict[str, Any]


class CallerGone(Exception):
    """No caller waits for the answer."""


def evaluate(
    work: Callable[[], float],
    allowed: Mapping[str, Access],
    caller: int,
    began: Callable[[int], None] = lambda pid: None,
) -> Json:
    """Run `work` in a confined process and return its answer.

    The answer has one of these keys: `value`; `raised`, with the error of `work`; `died`, with the end of the process;
    `unavailable`, when the process cannot be confined. `memory` is the largest share of its address space that it used.

    `allowed` maps files to the allowed access. `caller` is a file descriptor that becomes readable when the caller
    leaves; then `CallerGone` is raised. `began` receives the process id. The caller must have one thread: a fork keeps
    the locks of other threads, but not the threads.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_child(work, allowed, writing)
    os.close(writing)
    try:
        began(pid)
        line = _line(reading, caller)
        # The process waits to be killed, so its memory use can be read: libraries catch a `MemoryError` and continue.
        return _parsed_answer(line, pid) if line is not None else {"died": _description_of_end(pid)}
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _run_child(work: Callable[[], float], allowed: Mapping[str, Access], writing: int) -> NoReturn:
    """Run the child's part.

    No code of the parent continues here, not even its clean-up.
    """
    code = 1
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.closerange(3, writing)
        os.closerange(writing + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.write(writing, json.dumps(_answer(work, allowed)).encode() + b"\n")
        while True:
            signal.pause()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        print(f"an evaluation ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _answer(work: Callable[[], float], allowed: Mapping[str, Access]) -> Json:
    try:
        confine_this_process(allowed)
    except SandboxUnavailable as error:
        return {"unavailable": str(error)}
    try:
        return {"value": work()}
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"[:1000]}


def _line(reading: int, caller: int) -> bytes | None:
    """Return the process's line, or None when it ends without one or the line is too long.

    Raises `CallerGone`.
    """
    found = b""
    poller = select.poll()
    for descriptor in (reading, caller):
        poller.register(descriptor, select.POLLIN)
    while len(found) <= LONGEST_ANSWER_BYTES:
        ready = {descriptor for descriptor, _ in poller.poll()}
        if reading in ready:
            piece = os.read(reading, LONGEST_ANSWER_BYTES)
            found += piece
            if b"\n" in piece:
                return found.partition(b"\n")[0]
            if not piece:
                return None
        elif caller in ready:
            raise CallerGone
    return None


def _parsed_answer(line: bytes, pid: int) -> Json:
    """Parse the answer in a line.

    The evaluated text may have written the line itself. It then decides only its own value.
    """
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or len(answer) != 1 or not answer.keys() <= KEYS:
        return {"died": "and wrote what is no answer"}
    if "value" in answer and not isinstance(answer["value"], (int, float)):
        return {"died": "and wrote a value that is no number"}
    return {**answer, "memory": _share_of_memory(pid)}


def _share_of_memory(pid: int) -> float:
    limit = resource.prlimit(pid, resource.RLIMIT_AS)[0]
    return 0.0 if limit == resource.RLIM_INFINITY else address_space(pid)[1] / limit


def _description_of_end(pid: int) -> str:
    """Describe how the process ended.

    The process stays to be reaped.
    """
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None  # without WNOHANG it waits
    return f"with code {found.si_status if found.si_code == os.CLD_EXITED else -found.si_status}"
