"""System calls: those that Python's standard library does not wrap.

Linux only. Errors are `OSError`.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522


def syscall(number: int, *arguments: Any) -> int:
    """Make a system call by its number.

    Integers are passed as C longs, other arguments as ctypes passes them.
    """
    converted = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_LIBC.syscall(ctypes.c_long(number), *converted))


def prctl(option: int, *arguments: Any) -> int:
    """Call prctl(2).

    Missing arguments are 0, as some options require.
    """
    converted = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    padding = [ctypes.c_ulong(0)] * (4 - len(converted))
    return _checked(_LIBC.prctl(ctypes.c_int(option), *converted, *padding))


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Call mount(2)."""
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind)]
    data = None if options is None else options.encode()
    _checked(_LIBC.mount(*encoded, ctypes.c_ulong(flags), data), target)


def unshare(flags: int) -> None:
    """Call unshare(2)."""
    _checked(_LIBC.unshare(ctypes.c_int(flags)))


def drop_capabilities() -> None:
    """Drop every capability.

    With no_new_privs none can be regained, not even by root.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    syscall(_SYS_CAPSET[os.uname().machine], ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def _checked(result: int, name: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return int(result)
