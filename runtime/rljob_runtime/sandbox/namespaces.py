"""Namespaces: a process without network and IPC, in a root that holds only shared paths.

A supervisor enters once, then puts each program into the new root. This needs user namespaces, which laptops usually
offer and pods usually do not. It replaces Landlock where that is missing, and adds a second layer elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Iterable, Sequence

from rljob_runtime.sandbox.syscalls import mount, syscall, unshare

_NEW_MOUNTS, _NEW_IPC, _NEW_USERS, _NEW_NETWORK = 0x20000, 0x08000000, 0x10000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE, _READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC = 4096, 16384, 1 << 18, 1, 2, 4, 8
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTRIBUTE_READ_ONLY, _ATTRIBUTE_NO_SUID = 1, 2


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("users", ctypes.c_uint64),
    )


def enter(root: str, shared: Iterable[str], hidden: Sequence[str], size: int) -> None:
    """Move this process into new namespaces and build a root at the folder `root`.

    The root holds the `shared` paths, read-only and without the `hidden` ones below them, on a memory file system of
    `size` bytes. The file system ends with its last process. Raises `OSError`.

    This process continues to see everything. The caller calls `os.chroot(root)`.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(_NEW_USERS | _NEW_MOUNTS | _NEW_IPC | _NEW_NETWORK)
    for name, content in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(content)
    mount("none", "/", None, _RECURSIVE | _PRIVATE)
    # A program that executes its own file could make that file unreadable, and the use of such a process could not be
    # read. So the root allows no execution. (The shared paths are separate mounts.)
    mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES | _NO_EXEC, f"size={size},mode=555")
    # This process writes in folders of this mode because it has all capabilities here. A program has none, so it leaves
    # no message for the next one.
    before = os.umask(0o222)
    try:
        for path in shared:
            _share(path, root + path)
            for below in hidden:
                if below.startswith(f"{os.path.realpath(path)}/"):
                    _hide(root + path + below.removeprefix(os.path.realpath(path)))
    finally:
        os.umask(before)


def _share(path: str, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    elif os.path.exists(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    else:
        return
    mount(path, target, None, _BIND | _RECURSIVE)
    attributes = _MountAttributes(_ATTRIBUTE_READ_ONLY | _ATTRIBUTE_NO_SUID, 0, 0, 0)
    where = os.fsencode(target)
    syscall(_MOUNT_SETATTR, _AT_FDCWD, where, _AT_RECURSIVE, ctypes.byref(attributes), ctypes.sizeof(attributes))


def _hide(target: str) -> None:
    """Cover a folder or file below a shared path with an empty one."""
    if os.path.isdir(target):
        mount("tmpfs", target, "tmpfs", _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_EXEC, "size=4k,mode=000")
    elif os.path.exists(target):
        mount(os.devnull, target, None, _BIND)


def unavailable(root: str, shared: Iterable[str], hidden: Sequence[str], size: int) -> str | None:
    """Return why `enter` fails here, tried in a child process, or None."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            enter(root, shared, hidden, size)
            os.chroot(root)
        except OSError as error:
            os.write(writer, str(error).encode())
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        reason = file.read().decode(errors="replace")
    os.waitpid(child, 0)
    return reason or None
