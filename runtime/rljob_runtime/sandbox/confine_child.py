"""From a forked child to a program that can do nothing but compute: limits, layers, then the interpreter.

Runs between fork and exec in the supervisor's child. The order matters: each step may need what a later one takes away.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from rljob_runtime.sandbox import landlock, seccomp
from rljob_runtime.sandbox.program import Program
from rljob_runtime.sandbox.syscalls import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, drop_capabilities, prctl

FILE_NAME, STDIN_NAME = "program.py", "stdin"
FOLDER_BYTES = 64 << 20
"""What a program may write in all, to files and to its output."""
MAX_OPEN_FILES = 64
STACK_BYTES = 64 << 20

_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/localtime",
    "/usr/share/zoneinfo", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom",
)  # fmt: skip
_WRITABLE = ("/dev/null",)
_SCRIPT = f"exec(compile(open({FILE_NAME!r}, encoding='utf-8').read(), {FILE_NAME!r}, 'exec'))"


def installed_packages() -> tuple[str, ...]:
    """The folders of packages of the environment that runs us. A process that was started with -S, as a supervisor is,
    does not know of a venv: it has to be told."""
    scheme = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return tuple(sorted({*scheme, *site.getsitepackages()}))


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs programs, without the start-up files of this environment but with its packages."""

    executable: str
    packages: tuple[str, ...]
    readable: tuple[str, ...]
    """Folders and files that it needs, none below another."""
    hidden: tuple[str, ...]
    """Below them, what it does not need: our own packages, with the data that comes with them."""

    @classmethod
    def of_this_process(cls, packages: Iterable[str]) -> Interpreter:
        """The one under the environment that runs us, with these folders of packages."""
        executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        packages = tuple(packages)
        standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
        # A Python that is relocated with its prefix finds its libraries beside itself.
        beside = os.path.join(os.path.dirname(os.path.dirname(executable)), "lib")
        readable = _outermost({executable, *packages, *standard, beside, *_SYSTEM})
        return cls(executable, packages, readable, _ours())

    @cached_property
    def allowed(self) -> Mapping[str, landlock.Access]:
        """What may be done with each path. Landlock takes nothing back: around what is hidden, every neighbour is
        named."""
        found: dict[str, landlock.Access] = {}
        for path in self.readable:
            _add_around(path, self.hidden, found)
        return found

    def command(self) -> list[str]:
        """Runs the file `FILE_NAME` of the current folder as `__main__`. -S and -s leave out everybody's start-up
        hooks; -P keeps files that the program writes from shadowing the standard library."""
        script = f"import sys; sys.path += {list(self.packages)!r}; sys.argv = [{FILE_NAME!r}]; del sys; {_SCRIPT}"
        return [self.executable, "-s", "-S", "-P", "-B", "-c", script]


@dataclass(frozen=True)
class Place:
    """Where a program lives: `folder` as it sees it below `root` (None: the root of us all)."""

    root: str | None
    folder: str

    @property
    def outside(self) -> str:
        """The folder as we see it."""
        return (self.root or "") + self.folder


def confine_and_run(program: Program, place: Place, interpreter: Interpreter, use_landlock: bool, parent: int) -> None:
    """Become the program. Does not return; raises `OSError` or `KeyError` when a step fails."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _set_limits(program)
    if place.root is not None:
        os.chroot(place.root)
    os.chdir(place.folder)
    drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if use_landlock:
        landlock.restrict(_allowed(place.folder, interpreter))
    seccomp.install(seccomp.OWN_FILES)
    os.execve(interpreter.executable, interpreter.command(), _environment(place.folder))


def _set_limits(program: Program) -> None:
    # The supervisor ends it in time; this is for the case that the supervisor hangs. Twice the time, since the kernel
    # checks this limit by a count of ticks that was measured 6 % ahead of the process's clock.
    cpu = math.ceil(2 * program.cpu_seconds) + 5
    limits = {
        resource.RLIMIT_AS: program.memory_bytes,
        resource.RLIMIT_FSIZE: FOLDER_BYTES,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))


def _ours() -> tuple[str, ...]:
    """Wherever they lie: beside the packages of others once they are installed."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    return tuple(os.path.join(home, name) for name in sorted(os.listdir(home)) if name.startswith("rljob"))


def _add_around(path: str, hidden: Iterable[str], allowed: dict[str, landlock.Access]) -> None:
    """Read the path; of a folder that has something hidden in it, the names, and whatever else is there."""
    place = os.path.realpath(path)
    if place in hidden:
        return
    if not any(each.startswith(f"{place}/") for each in hidden):
        allowed[path] = landlock.READ
        return
    allowed[path] = landlock.Access.READ_DIR
    for name in os.listdir(place):
        _add_around(os.path.join(place, name), hidden, allowed)


def _allowed(folder: str, interpreter: Interpreter) -> dict[str, landlock.Access]:
    allowed = dict(interpreter.allowed)
    for path in _WRITABLE:
        allowed[path] |= landlock.Access.WRITE_FILE
    for path in (interpreter.executable, *_loaders()):
        allowed[path] = landlock.READ | landlock.Access.EXECUTE
    return {**allowed, folder: landlock.OWN}


def _loaders() -> list[str]:
    """The dynamic loaders that the kernel may start an executable with."""
    known = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1",
             "/lib/ld-musl-aarch64.so.1")  # fmt: skip
    return [path for path in known if os.path.exists(path)]


def _environment(folder: str) -> dict[str, str]:
    """Nothing of ours. One thread for linear algebra: its pools would take the address space."""
    return {
        "PATH": "/nonexistent",
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _outermost(paths: set[str]) -> tuple[str, ...]:
    """Without those that lie below others."""
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith(f"{above}/") for above in kept):
            kept.append(path)
    return tuple(kept)
