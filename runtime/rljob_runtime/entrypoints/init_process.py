"""The first process of a container in which foreign code runs: it waits for whatever is left to it.

A process whose parent was killed becomes the first one's child, and stays in the table as a zombie until it is waited
for. The event loop waits for its own children only: left to it, they would fill the pod's table of processes.
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
    """`work` in a child; its exit code once it has ended (128 and the signal, if one ended it). Signals that ask to end
    are passed on to it. To be called by a process that has no other thread and no other child."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # None is lost between the fork and the moment when we know whom to pass it on to.
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
        # Not back into what called us: that is the parent's to do.
        os._exit(code)
