"""Init process: first process of a container that runs foreign code; it reaps orphaned processes.

A process whose parent was killed becomes a child of the first process, and remains a zombie until that process waits
for it. The event loop waits for its own children only, so zombies would fill the pod's process table.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import NoReturn

from rljob_runtime.sandbox.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl

PASSED_ON = frozenset({signal.SIGTERM, signal.SIGINT})


def run_reaped(work: Callable[[], int]) -> int:
    """Run `work` in a child and return its exit code (128 plus the signal if one ended it).

    Signals that request an end are passed to the child. The calling process must have no other thread and no other
    child.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # Block the signals until the child's id is known, so that none is lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _become(work, parent)
    for number in PASSED_ON:
        signal.signal(number, lambda caught, _: os.kill(child, caught))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _become(work: Callable[[], int], parent: int) -> NoReturn:
    code = 1
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
            code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        # Only the parent returns to the caller.
        os._exit(code)
