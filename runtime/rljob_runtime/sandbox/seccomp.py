"""Seccomp filter: refuses system calls that a program does not need to read, compute and write its own files.

A refused call returns an error, so a program gets an exception and continues. A call newer than this list does not
exist for it. Sockets are refused, except the unnamed stream pair that wakes `asyncio`. Only threads can be created, no
processes. A program cannot act on other processes of the same user, of which a pod has many.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_runtime.sandbox.syscalls import prctl

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
NEWEST = 451
"""The last known call, on both architectures."""

# name: number on x86_64, on aarch64 (None: absent).
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # processes, and actions on other processes
    "fork": (57, None), "vfork": (58, None), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "get_robust_list": (274, 100),
    # signals of one's choice, which would look as if another process had sent them
    "timer_create": (222, 107), "mq_notify": (244, 184), "seccomp": (317, 277),
    # sockets; recvmsg and sendmsg can pass file descriptors
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242), "sendmsg": (46, 211), "recvmsg": (47, 212), "sendmmsg": (307, 269), "recvmmsg": (299, 243),
    # memory and messages that no limit of the process counts, or that outlive it
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # kernel memory: rules of further layers, and buffers of any size
    "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
    "setsockopt": (54, 208),
    # writes to a file that are not counted
    "fallocate": (285, 47), "splice": (275, 76), "tee": (276, 77), "vmsplice": (278, 75),
    "copy_file_range": (326, 285), "io_setup": (206, 0), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "remap_file_pages": (216, 234),
    # files by name, which Landlock does not check
    "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    # the system
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "unshare": (272, 97), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "userfaultfd": (323, 282), "bpf": (321, 280), "perf_event_open": (298, 241), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "acct": (163, 89), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "personality": (135, 92), "vhangup": (153, 58), "lookup_dcookie": (212, 18), "uselib": (134, None),
    "sync": (162, 81), "syncfs": (306, 267),
}  # fmt: skip
ABSENT: dict[str, tuple[int | None, int | None]] = {"clone3": (435, 435), "openat2": (437, 437)}
"""Calls whose arguments lie in memory, where a filter cannot read them. The C library falls back to the older call."""
CONDITIONAL: dict[str, tuple[int | None, int | None]] = {
    "clone": (56, 220), "kill": (62, 129), "tgkill": (234, 131), "prctl": (157, 167), "prlimit64": (302, 261),
    "setrlimit": (160, 164), "sched_setaffinity": (203, 122), "socketpair": (53, 199), "mmap": (9, 222),
    "fcntl": (72, 25), "ioctl": (16, 29), "open": (2, None), "openat": (257, 56), "creat": (85, None),
}  # fmt: skip
"""Calls that are allowed with some arguments."""

_CLONE_THREAD = 0x10000
_LIMITS_THAT_KILL = (0, 15)  # RLIMIT_CPU, RLIMIT_RTTIME: above the hard limit, the kernel sends SIGKILL
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF
_MAP_ANONYMOUS, _MAP_TYPE_MASK, _MAP_PRIVATE = 0x20, 0xF, 2
_PRCTL_ALLOWED = (15, 16, 23, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ, PR_SET_VMA
# F_SETOWN, F_SETSIG, F_SETOWN_EX, F_NOTIFY: signals to others. F_SETPIPE_SZ: kernel memory.
_FCNTL_REFUSED = (8, 10, 15, 1026, 1031)
_IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIO(N)CLEX


@dataclass(frozen=True)
class Opening:
    """How files may be opened: the flags of open(2) under the mask must be in `allowed`."""

    mask: int
    allowed: tuple[int, ...]

    def allows(self, flags: int) -> bool:
        """Return whether a file may be opened with these flags."""
        return flags & self.mask in self.allowed


_WRITING = (os.O_WRONLY, os.O_RDWR)
OWN_FILES = Opening(os.O_ACCMODE | os.O_TRUNC, (os.O_RDONLY, *_WRITING, *(mode | os.O_TRUNC for mode in _WRITING)))
"""Opens that every Landlock kernel checks. Until Linux 6.2 a readable file can be truncated with O_TRUNC. Access mode
3, neither reading nor writing, needs no right at all."""
READ_ONLY = Opening(os.O_ACCMODE | os.O_TRUNC | os.O_CREAT, (os.O_RDONLY,))

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_EQUAL, _JUMP_GREATER, _JUMP_AT_LEAST, _JUMP_SET = 0x15, 0x25, 0x35, 0x45
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


Step = tuple[int, int, int, int]
"""code, jump if true, jump if false, constant."""

_PASS: Step = (_RETURN, 0, 0, _ALLOW)


def _fail(number: int) -> Step:
    return (_RETURN, 0, 0, _ERRNO | number)


_REFUSE = _fail(errno.EPERM)


def _argument(index: int) -> Step:
    """Load the low half of an argument.

    The kernel uses 32 bits of every argument that the filter reads.
    """
    return (_LOAD, 0, 0, 16 + 8 * index)


def _only(index: int, values: Iterable[int], mask: int | None = None) -> list[Step]:
    """Refuse unless the argument (under the mask) is one of the values."""
    values = list(values)
    masked: list[Step] = [] if mask is None else [(_AND, 0, 0, mask)]
    tests: list[Step] = [(_JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [_argument(index), *masked, *tests, _REFUSE]


def _none_of(index: int, values: Iterable[int]) -> list[Step]:
    """Refuse if the argument is one of the values."""
    return [_argument(index), *(step for value in values for step in ((_JUMP_EQUAL, 0, 1, value), _REFUSE))]


def _bodies(pid: int, opening: Opening) -> dict[str, list[Step]]:
    """Return the checks of each `CONDITIONAL` call for the process `pid`."""
    # A program must not send itself SIGKILL: the supervisor takes a foreign SIGKILL for a failure of the sandbox and
    # would retry.
    no_kill = (signal.SIGKILL,)
    return {
        "clone": [_argument(0), (_JUMP_SET, 1, 0, _CLONE_THREAD), _REFUSE],
        "kill": [*_only(0, (pid, 0)), *_none_of(1, no_kill)],
        "tgkill": [*_only(0, (pid,)), *_none_of(2, no_kill)],
        "prctl": _only(0, _PRCTL_ALLOWED),
        "prlimit64": [*_only(0, (0,)), *_none_of(1, _LIMITS_THAT_KILL)],
        "setrlimit": _none_of(0, _LIMITS_THAT_KILL),
        "sched_setaffinity": _only(0, (0,)),
        "socketpair": [*_only(0, (_AF_UNIX,)), *_only(1, (_SOCK_STREAM,), _SOCK_TYPE_MASK)],
        # Writes to a file through shared memory are not counted.
        "mmap": [_argument(3), (_JUMP_SET, 0, 1, _MAP_ANONYMOUS), _PASS, *_only(3, (_MAP_PRIVATE,), _MAP_TYPE_MASK)],
        "fcntl": _none_of(1, _FCNTL_REFUSED),
        "ioctl": _only(1, _IOCTL_ALLOWED),
        "open": _only(1, opening.allowed, opening.mask),
        "openat": _only(2, opening.allowed, opening.mask),
        "creat": [] if opening.allows(os.O_CREAT | os.O_WRONLY | os.O_TRUNC) else [_REFUSE],
    }


def program(machine: str, pid: int, opening: Opening) -> list[Step]:
    """Build the filter as BPF for a machine (`os.uname().machine`) and the process that it will confine.

    Raises `KeyError` for an unknown machine.
    """
    column = list(_ARCHITECTURES).index(machine) if machine in _ARCHITECTURES else None
    if column is None:
        raise KeyError(f"no table of system calls for {machine}; there are {', '.join(_ARCHITECTURES)}")
    steps: list[Step] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, 0),
        (_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_JUMP_GREATER, 0, 1, NEWEST),
        _fail(errno.ENOSYS),
    ]
    blocks = [(CONDITIONAL[name], [*body, _PASS]) for name, body in _bodies(pid, opening).items()]
    blocks += [(numbers, [_fail(errno.ENOSYS)]) for numbers in ABSENT.values()]
    blocks += [(numbers, [_REFUSE]) for numbers in REFUSED.values()]
    for numbers, body in blocks:
        number = numbers[column]
        if number is not None:
            steps += [(_JUMP_EQUAL, 0, len(body), number), *body]
    return [*steps, _PASS]


def install(opening: Opening) -> None:
    """Install the filter in this process.

    It needs no_new_privs. Raises `OSError`, or `KeyError` on an unknown machine.
    """
    steps = program(os.uname().machine, os.getpid(), opening)
    instructions = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(steps), instructions)))
