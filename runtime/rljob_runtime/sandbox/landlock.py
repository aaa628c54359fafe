"""Landlock: a process gives up, for itself and its children, all files that it does not list.

It needs no privilege, so it works in a pod without capabilities. It needs kernel 5.13 or later with Landlock enabled.
The kernel checks a file when it is opened; open files stay open. Before Linux 6.2 Landlock does not refuse truncation;
the seccomp filter does (`seccomp.Opening`).
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Mapping
from enum import IntFlag

from rljob_runtime.sandbox.syscalls import syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION = 1
_PATH_BENEATH = 1

_NET_ALL = 0b11
"""Binding and connecting TCP sockets."""
_SCOPE_ALL = 0b11
"""Abstract Unix sockets, and signals to processes outside."""


class Access(IntFlag):
    """Access rights below a path: bits of the kernel's interface."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_DIR = 1 << 7
    MAKE_REGULAR = 1 << 8
    REFER = 1 << 13
    TRUNCATE = 1 << 14


READ = Access.READ_FILE | Access.READ_DIR
OWN = (
    READ
    | Access.WRITE_FILE
    | Access.REMOVE_DIR
    | Access.REMOVE_FILE
    | Access.MAKE_DIR
    | Access.MAKE_REGULAR
    | Access.REFER
    | Access.TRUNCATE
)
"""Rights in a process's own folder: plain files and folders, no links, devices, pipes or sockets."""

_FILE_ONLY = Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_NEWEST = (1 << 16) - 1


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Return the version of the kernel's interface, from 1.

    Raises `OSError` where there is none.
    """
    return syscall(_CREATE_RULESET, None, 0, _GET_VERSION)


def restrict(allowed: Mapping[str, Access]) -> None:
    """Restrict this process to `allowed`, which maps each path to the rights at and below it.

    Missing paths are skipped. It needs no_new_privs. Where the kernel supports it, TCP and signals to other processes
    are given up too. Raises `OSError`.
    """
    known = version()
    handled = _ALL_BY_VERSION.get(known, _ALL_NEWEST)
    attributes = _Ruleset(handled, _NET_ALL, _SCOPE_ALL)
    size = 8 if known < 4 else 16 if known < 6 else 24
    ruleset = syscall(_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    try:
        for path, access in allowed.items():
            _allow(ruleset, path, access & handled)
        syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            access &= _FILE_ONLY
        rule = _PathBeneath(access, parent)
        syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)
