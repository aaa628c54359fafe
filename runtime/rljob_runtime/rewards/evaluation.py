"""One evaluation of a text that a model wrote, in a process of its own.

The process is forked from a worker that has loaded the rules, gives up all rights, evaluates, and is killed. What the
text changes there is gone with it, and it holds no way to the answers of others.
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
"""What a process may say, each alone."""

Json = dict[str, Any]


class CallerGone(Exception):
    """Nobody waits for the answer any more."""


def evaluate(
    work: Callable[[], float],
    allowed: Mapping[str, Access],
    caller: int,
    began: Callable[[int], None] = lambda pid: None,
) -> Json:
    """What `work` gives in a confined process: `value`, or what it `raised`, or how its process `died`; `unavailable`
    where it cannot be confined. `memory` is the largest share of its address space that it had.

    `allowed`: what it may do with which files. `caller` is a file descriptor that can be read when the caller has left;
    then `CallerGone` is raised. `began` is told the process. The caller has one thread: others would not be there in a
    fork, but their locks would.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_the_process(work, allowed, writing)
    os.close(writing)
    try:
        began(pid)
        line = _line(reading, caller)
        # It waits for its end, so that what it took can be looked at: libraries catch a `MemoryError` and go on.
        return _said(line, pid) if line is not None else {"died": _ended(pid)}
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _be_the_process(work: Callable[[], float], allowed: Mapping[str, Access], writing: int) -> NoReturn:
    """The child's part: nothing of the parent's goes on here, no clean-up either."""
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
    """The process's line; None when it ends without one, or its line has no end. Raises `CallerGone`."""
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


def _said(line: bytes, pid: int) -> Json:
    """The answer in a line, which the text may have written itself: then it decides about nothing but its own value."""
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


def _ended(pid: int) -> str:
    """How the process has ended, in words; it stays to be reaped."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None  # without WNOHANG it waits
    return f"with code {found.si_status if found.si_code == os.CLD_EXITED else -found.si_status}"
