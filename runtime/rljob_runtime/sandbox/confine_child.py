"""Child confinement: turns a forked child into a program that can only compute.

It sets limits, applies the layers and executes the interpreter. It runs between fork and exec in the supervisor's
child. The order matters: a step may need a right that a later step removes.
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
"""Total bytes that a program may write, to files and to its output."""
MAX_OPEN_FILES = 64
STACK_BYTES = 64 << 20

_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/localtime",
    "/usr/share/zoneinfo", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom",
)  # fmt: skip
_WRITABLE = ("/dev/null",)
_SCRIPT = f"exec(compile(open({FILE_NAME!r}, encoding='utf-8').read(), {FILE_NAME!r}, 'exec'))"


def installed_packages() -> tuple[str, ...]:
    """Return the package folders of this environment.

    A process that starts with -S, like a supervisor, does not find those of a venv, so they are passed to it.
    """
    scheme = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return tuple(sorted({*scheme, *site.getsitepackages()}))


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs programs.

    It has the packages of this environment, but not its start-up files.
    """

    executable: str
    packages: tuple[str, ...]
    readable: tuple[str, ...]
    """Folders and files that it needs. None lies below another."""
    hidden: tuple[str, ...]
    """Paths below `readable` that it does not need: our own packages, with their data."""

    @classmethod
    def of_this_process(cls, packages: Iterable[str]) -> Interpreter:
        """Return the interpreter of this environment with these package folders."""
        executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        packages = tuple(packages)
        standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
        # A relocated Python finds its libraries relative to its executable.
        beside = os.path.join(os.path.dirname(os.path.dirname(executable)), "lib")
        readable = _outermost({executable, *packages, *standard, beside, *_SYSTEM})
        return cls(executable, packages, readable, _own_packages())

    @cached_property
    def allowed(self) -> Mapping[str, landlock.Access]:
        """Access to each path.

        Landlock cannot exclude a path below an allowed one. Around hidden paths, every neighbour is therefore listed.
        """
        found: dict[str, landlock.Access] = {}
        for path in self.readable:
            _add_around(path, self.hidden, found)
        return found

    def command(self) -> list[str]:
        """Return the command that runs the file `FILE_NAME` of the current folder as `__main__`.

        -S and -s skip all start-up hooks. -P keeps files that the program writes from shadowing the standard library.
        """
        script = f"import sys; sys.path += {list(self.packages)!r}; sys.argv = [{FILE_NAME!r}]; del sys; {_SCRIPT}"
        return [self.executable, "-s", "-S", "-P", "-B", "-c", script]


@dataclass(frozen=True)
class Filesystem:
    """The filesystem of a program.

    `folder` is its folder as it sees it below `root`. Without a `root` it shares the supervisor's.
    """

    root: str | None
    folder: str

    @property
    def outside(self) -> str:
        """The folder as the supervisor sees it."""
        return (self.root or "") + self.folder


def confine_and_run(
    program: Program, filesystem: Filesystem, interpreter: Interpreter, use_landlock: bool, parent: int
) -> None:
    """Confine this process and execute the program.

    Does not return. Raises `OSError` or `KeyError` when a step fails.
    """
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _set_limits(program)
    if filesystem.root is not None:
        os.chroot(filesystem.root)
    os.chdir(filesystem.folder)
    drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if use_landlock:
        landlock.restrict(_allowed(filesystem.folder, interpreter))
    seccomp.install(seccomp.OWN_FILES)
    os.execve(interpreter.executable, interpreter.command(), _environment(filesystem.folder))


def _set_limits(program: Program) -> None:
    # This limit serves when the supervisor hangs. It is twice the time, because the kernel's tick count ran up to 6 %
    # ahead of the process's clock.
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


def _own_packages() -> tuple[str, ...]:
    """Return our own packages.

    Once installed, they lie beside the packages of others.
    """
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    return tuple(os.path.join(home, name) for name in sorted(os.listdir(home)) if name.startswith("rljob"))


def _add_around(path: str, hidden: Iterable[str], allowed: dict[str, landlock.Access]) -> None:
    """Allow a path for reading.

    For a folder with hidden paths, allow its names and every other path in it.
    """
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
    """Return the dynamic loaders that the kernel may start an executable with."""
    known = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1",
             "/lib/ld-musl-aarch64.so.1")  # fmt: skip
    return [path for path in known if os.path.exists(path)]


def _environment(folder: str) -> dict[str, str]:
    """Return the environment of the program, with nothing of ours.

    Thread pools of linear algebra would use up the address space, so it gets one thread.
    """
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
    """Return the paths that do not lie below others."""
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith(f"{above}/") for above in kept):
            kept.append(path)
    return tuple(kept)
