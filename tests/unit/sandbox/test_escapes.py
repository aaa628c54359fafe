"""Programs that try to get out, to hurt, or to stay. Each is run with every combination of the layers that can protect
files here, says what happened to it, and leaves nothing running behind it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import rljob_runtime
from rljob_runtime.sandbox.program import End, Layer, Program, SandboxUnavailable
from rljob_runtime.sandbox.sandbox import Sandbox
from tests.support.rows import slow
from tests.support.waiting import until

LAYERS = [frozenset(Layer), frozenset({Layer.LANDLOCK}), frozenset({Layer.NAMESPACES})]


@pytest.fixture(scope="module", params=[LAYERS[0], *slow(*LAYERS[1:])], ids=lambda layers: "+".join(sorted(layers)))
def layers(request: pytest.FixtureRequest) -> frozenset[Layer]:
    """Layers that this machine has, so that one without some of them skips their cases and says so. Layers that are
    there and leak are a failure."""

    async def find() -> frozenset[Layer]:
        async with Sandbox(1, request.param) as sandbox:
            return sandbox.layers

    try:
        found = asyncio.run(find())
    except SandboxUnavailable as error:
        if "nothing keeps a program" not in str(error):
            raise
        found = frozenset()
    if found != request.param:
        pytest.skip(f"this machine has of these layers: {', '.join(sorted(found)) or 'none'}")
    return request.param


@pytest.fixture
async def sandbox(layers: frozenset[Layer]) -> AsyncIterator[Sandbox]:
    async with Sandbox(1, layers) as sandbox:
        (supervisor,) = pids(sandbox)
        yield sandbox
        assert pids(sandbox) == {supervisor}, "the supervisor did not survive"
        assert children_of(supervisor) == []
        assert folders_of(supervisor, sandbox) == []
    with pytest.raises(ProcessLookupError):
        os.kill(supervisor, 0)


def pids(sandbox: Sandbox) -> set[int]:
    """Of its supervisors."""
    return {supervisor.pid for supervisor in sandbox.pool.running()}


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def folders_of(pid: int, sandbox: Sandbox) -> list[str]:
    """What programs left in the scratch folder, as the supervisor sees it."""
    scratch = Path(f"/proc/{pid}/root{sandbox._scratch}")
    return [str(path) for path in (*scratch.glob("box-*"), *scratch.glob("*/box-*"))]


def report(code: str) -> str:
    """A program that tries something and prints the error's name, or what came of it."""
    body = "\n".join(f"    {line}" for line in code.strip().splitlines())
    return f"""
import ctypes, errno, os, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def called(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result
def attempt():
{body}
try:
    print("it could:", attempt())
except OSError as error:
    print(errno.errorcode[error.errno])
"""


REFUSED = {
    "fork": ("return os.fork()", {"EPERM"}),
    "vfork and exec": ("return subprocess.run(['/bin/true'])", {"EPERM"}),
    "double fork": ("if os.fork() == 0:\n    os.setsid()\n    os.fork()\n    time.sleep(600)", {"EPERM"}),
    "clone without a thread": (
        "number = 56 if os.uname().machine == 'x86_64' else 220\nreturn called(libc.syscall(number, 17, 0, 0, 0, 0))",
        {"EPERM"},
    ),
    "exec of a file of its own that may not be read": (
        "os.close(os.open('own', os.O_CREAT | os.O_WRONLY, 0o111))\nos.execv('own', ['own'])",
        {"EACCES"},
    ),
    "exec of another program": ("os.execv('/bin/ls', ['ls'])", {"EACCES", "ENOENT"}),
    "a TCP socket": ("return socket.socket()", {"EPERM"}),
    "a unix socket": ("return socket.socket(socket.AF_UNIX)", {"EPERM"}),
    "a netlink socket": ("return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", {"EPERM"}),
    "a pair that can be turned elsewhere": ("return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", {"EPERM"}),
    "ptrace of the parent": ("return called(libc.ptrace(16, os.getppid(), 0, 0))", {"EPERM"}),
    "ptrace by the parent": ("return called(libc.ptrace(0, 0, 0, 0))", {"EPERM"}),
    "memory of the parent": ("return open(f'/proc/{os.getppid()}/mem', 'rb')", {"EACCES", "ENOENT"}),
    "environment of the parent": ("return open(f'/proc/{os.getppid()}/environ').read()", {"EACCES", "ENOENT"}),
    "its own memory through proc": ("return open('/proc/self/mem', 'rb')", {"EACCES", "ENOENT"}),
    "kill of the parent": ("return os.kill(os.getppid(), signal.SIGKILL)", {"EPERM"}),
    "kill of everybody": ("return os.kill(-1, signal.SIGKILL)", {"EPERM"}),
    "a signal by file owner": (
        "import fcntl\nr, w = os.pipe()\nreturn fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())",
        {"EPERM"},
    ),
    "kill of itself, to look like our failure": ("return os.kill(os.getpid(), signal.SIGKILL)", {"EPERM"}),
    "limits of the parent": (
        "import resource\nreturn resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1))",
        {"EPERM"},
    ),
    "priority of the parent": ("return os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)", {"EPERM"}),
    "processors of the parent": ("return os.sched_setaffinity(os.getppid(), {0})", {"EPERM"}),
    "a file beside its folder": ("return open('../evil', 'w')", {"EACCES"}),
    "a file at the root": ("return open('/evil', 'w')", {"EACCES"}),
    "a file in the common scratch folder": ("return open('/tmp/evil', 'w')", {"EACCES", "ENOENT"}),
    "a file among the devices": ("return open('/dev/evil', 'w')", {"EACCES"}),
    "a file among the libraries": (
        "import json\nopen(os.path.dirname(json.__file__) + '/evil.py', 'w')",
        {"EACCES", "EROFS"},
    ),
    "a file for neither reading nor writing": ("return os.open('/etc/passwd', os.O_ACCMODE)", {"EPERM"}),
    "what may only be read, emptied": ("return os.open('/dev/zero', os.O_RDONLY | os.O_TRUNC)", {"EPERM"}),
    "mode of a library": ("import json\nos.chmod(json.__file__, 0o777)", {"EPERM"}),
    "passwords": ("return open('/etc/passwd').read()", {"EACCES", "ENOENT"}),
    "a device": ("os.mknod('sda', 0o60660, os.makedev(8, 0))", {"EACCES", "EPERM"}),
    "shared memory that stays": ("return called(libc.shmget(7, 4096, 0o1666))", {"EPERM"}),
    "memory without a limit": ("return os.memfd_create('x')", {"EPERM"}),
    "rules of a further layer": (
        "return called(libc.syscall(444, (ctypes.c_ulong * 3)(1), 8, 0))",
        {"EPERM"},
    ),
    "a large buffer of a socket": (
        "a, b = socket.socketpair()\nreturn a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)",
        {"EPERM"},
    ),
    "a large pipe": ("import fcntl\nr, w = os.pipe()\nreturn fcntl.fcntl(w, 1031, 1 << 20)", {"EPERM"}),
    "a file written through memory": (
        "import mmap\nf = open('f', 'w+b')\nf.truncate(4096)\nreturn mmap.mmap(f.fileno(), 4096)",
        {"EPERM"},
    ),
    "blocks without writing": ("f = open('f', 'w+b')\nreturn os.posix_fallocate(f.fileno(), 0, 1 << 20)", {"EPERM"}),
    "a new namespace": ("return called(libc.unshare(0x10000000))", {"EPERM"}),
    "another root": ("return os.chroot('.')", {"EPERM"}),
    "a mount": ("return called(libc.mount(b'none', b'.', b'tmpfs', 0, None))", {"EPERM"}),
    "a call that is too new": ("return called(libc.syscall(460, 0, 0, 0))", {"ENOSYS"}),
    "io_uring": ("return called(libc.syscall(425, 8, 0))", {"EPERM"}),
    "a timer that sends SIGKILL": (
        "number = 222 if os.uname().machine == 'x86_64' else 107\n"
        "event, timer = (ctypes.c_int * 16)(0, 0, signal.SIGKILL), ctypes.c_int()\n"
        "called(libc.syscall(number, time.CLOCK_MONOTONIC, event, ctypes.byref(timer)))\n"
        "called(libc.syscall(number + 1 if number == 222 else 110, timer, 0, (ctypes.c_long * 4)(0, 0, 0, 1), None))\n"
        "time.sleep(5)",
        {"EPERM"},
    ),
    "a SIGKILL of its own through the queue": (
        "number = 129 if os.uname().machine == 'x86_64' else 138\n"
        "return called(libc.syscall(number, os.getpid(), signal.SIGKILL, (ctypes.c_int * 32)()))",
        {"EPERM"},
    ),
    "a SIGKILL to its own thread": (
        "number = 234 if os.uname().machine == 'x86_64' else 131\n"
        "return called(libc.syscall(number, os.getpid(), os.getpid(), signal.SIGKILL))",
        {"EPERM"},
    ),
    "a SIGKILL to its own group": ("return os.kill(0, signal.SIGKILL)", {"EPERM"}),
    "a SIGKILL when a file is ready": (
        "import fcntl\nr, w = os.pipe()\nreturn fcntl.fcntl(r, fcntl.F_SETSIG, signal.SIGKILL)",
        {"EPERM"},
    ),
    "a SIGKILL when a message comes": (
        "return called(libc.syscall(244 if os.uname().machine == 'x86_64' else 184, 0, None))",
        {"EPERM"},
    ),
    "a SIGKILL when its parent ends": ("return called(libc.prctl(1, signal.SIGKILL, 0, 0, 0))", {"EPERM"}),
    "a SIGKILL past a limit": ("return called(libc.prlimit(0, 0, (ctypes.c_long * 2)(0, 0), None))", {"EPERM"}),
    "a SIGKILL past a limit in real time": (
        "return called(libc.prlimit(0, 15, (ctypes.c_long * 2)(0, 0), None))",
        {"EPERM"},
    ),
    "a SIGKILL for any further call": (
        "return called(libc.syscall(317 if os.uname().machine == 'x86_64' else 277, 0, 0, None))",
        {"EPERM"},
    ),
}


async def test_what_is_refused_is_an_error_of_the_program(sandbox: Sandbox) -> None:
    secret = "a secret in the environment"
    os.environ["REWARDS_TEST_SECRET"] = secret
    try:
        for what, (code, errors) in REFUSED.items():
            run = await sandbox.run(Program(report(code), run_seconds=60))
            assert run.clean, (what, run)
            assert run.stdout.strip() in errors, (what, run)
            assert secret not in run.stdout + run.stderr
    finally:
        del os.environ["REWARDS_TEST_SECRET"]


async def test_a_file_of_the_same_user_outside_cannot_be_read(sandbox: Sandbox, tmp_path: Path) -> None:
    """As the token of the coordinator's service account is."""
    with tempfile.TemporaryDirectory(prefix="serviceaccount-") as mounted:
        for token in (tmp_path / "token", Path(mounted) / "token"):
            token.write_text("eyJhbGciOi")
            token.chmod(0o644)
            code = f"os.symlink({str(token)!r}, 'link')\nreturn open('link').read()"
            ways = (f"return open({str(token)!r}).read()", f"os.link({str(token)!r}, 'link')", code)
            emptied = (f"os.open({str(token)!r}, {mode} | os.O_TRUNC)" for mode in ("os.O_RDONLY", "os.O_ACCMODE"))
            for attempt in (*ways, *emptied):
                run = await sandbox.run(Program(report(attempt)))
                assert run.stdout.strip() in ("EACCES", "ENOENT", "EXDEV", "EPERM"), run
                assert "eyJ" not in run.stdout + run.stderr
            assert token.read_text() == "eyJhbGciOi"


async def test_a_server_on_this_machine_is_not_reached(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        run = await sandbox.run(Program(report(f"return socket.create_connection(('127.0.0.1', {port}))")))
        assert run.stdout.strip() == "EPERM"
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()


LEAVE = """
import ctypes, os, threading, time
def compute(_):
    while True: pass
def leave(what):
    threading.Thread(target=what, args=(600,)).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 9)
"""
"""Ends the main thread alone: of a process without one, its own user may not read what it uses."""
STOPPED: dict[str, tuple[str, End]] = {
    "for ever": ("while True: pass", End.TIMED_OUT),
    "asleep": ("import time\ntime.sleep(600)", End.TIMED_OUT),
    "ignores every signal": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        End.TIMED_OUT,
    ),
    "catches everything": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        End.TIMED_OUT,
    ),
    "closes its output, then loops": (
        "import os\nfor fd in range(64):\n    try: os.close(fd)\n    except OSError: pass\nwhile True: pass",
        End.TIMED_OUT,
    ),
    "prints for ever": ("while True: print('x' * 10000)", End.TOO_MUCH_OUTPUT),
    "many small files": ("n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'w').close()", End.TOO_MANY_FILES),
    "deep folders": ("import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')", End.TOO_MANY_FILES),
    "folders too deep for a path": (
        "import os\nfor _ in range(20):\n    os.mkdir('n' * 250)\n    os.chdir('n' * 250)\n"
        "n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'w').close()",
        End.TOO_MANY_FILES,
    ),
    "files in a folder that may not be listed": (
        "import os\nos.mkdir('d', 0o300)\nos.chdir('d')\n"
        "n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'w').close()",
        End.TOO_MANY_FILES,
    ),
    "files below folders that may not be listed": (
        "import os\nos.umask(0o477)\nos.makedirs('a/b')\nos.chdir('a/b')\n"
        "n = 0\nwhile True:\n    n += 1\n    os.mkdir(f'd{n}')",
        End.TOO_MANY_FILES,
    ),
    "folders that come and go": (
        "import os\nwhile True:\n    os.makedirs('a/b/c')\n    os.mkdir('a/b/d', 0)\n"
        "    for d in ('a/b/d', 'a/b/c', 'a/b', 'a'): os.rmdir(d)",
        End.TIMED_OUT,
    ),
    "many threads": (
        "import threading, time\nthreading.stack_size(1 << 16)\n"
        "while True: threading.Thread(target=time.sleep, args=(600,)).start()",
        End.TOO_MANY_THREADS,
    ),
    "threads that compute": (
        "import threading\ndef f():\n    while True: pass\nfor _ in range(8): threading.Thread(target=f).start()\nf()",
        End.TIMED_OUT,
    ),
    "goes on without its main thread": (f"{LEAVE}leave(time.sleep)", End.TIMED_OUT),
    "computes on without its main thread": (f"{LEAVE}leave(compute)", End.TIMED_OUT),
    "crashes": ("import ctypes\nctypes.string_at(0)", End.SIGNALLED),
    "aborts": ("import os\nos.abort()", End.SIGNALLED),
}


async def test_what_does_not_stop_is_stopped(sandbox: Sandbox) -> None:
    for what, (source, end) in STOPPED.items():
        await stopped(sandbox, what, source, end)


WRITERS: dict[str, tuple[str, End]] = {
    "complains for ever": ("import sys\nwhile True: sys.stderr.write('x' * 100000)", End.TOO_MUCH_WRITTEN),
    "fills the disk": (
        "n = 0\nwhile True:\n    n += 1\n    with open(f'f{n % 7}', 'wb') as f: f.write(bytes(1 << 20))",
        End.TOO_MUCH_WRITTEN,
    ),
    "fills the disk with files that have no name": (
        "import os\nwhile True:\n    f = open('f', 'wb', 0)\n    os.unlink('f')\n    f.write(bytes(1 << 20))",
        End.TOO_MUCH_WRITTEN,
    ),
}


async def test_what_writes_without_end_is_stopped(sandbox: Sandbox) -> None:
    for what, (source, end) in WRITERS.items():
        await stopped(sandbox, what, source, end)


HIDING = {"goes on unseen": (f"{LEAVE}leave(time.sleep)", End.HIDDEN)}
"""To root nothing is hidden; nor, on some kernels, to anyone: there the clock ends it."""


def limits(end: End) -> dict[str, Any]:
    """Time enough for those that a count stops; little for those that only the clock does."""
    cpu, wall = {End.TIMED_OUT: (0.2, 0.4), End.HIDDEN: (2.5, 8.0)}.get(end, (2.5, 40.0))
    return {"cpu_seconds": cpu, "run_seconds": wall, "output_bytes": 1 << 20}


def file_system(folder: str) -> str:
    return subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True).stdout.strip()


async def test_a_byte_in_each_page_counts_as_the_page(sandbox: Sandbox, layers: frozenset[Layer]) -> None:
    source = (
        "for n in range(16):\n    f = os.open(f'f{n}', os.O_CREAT | os.O_WRONLY)\n"
        "    for page in range(1 << 14): os.pwrite(f, b'x', page << 12)"
    )
    run = await sandbox.run(Program(report(source), run_seconds=60.0))
    if Layer.NAMESPACES in layers:
        assert run.stdout == "ENOSPC\n", run
    elif file_system(tempfile.gettempdir()) == "tmpfs":
        pytest.skip("nothing here is written to a disk")
    else:
        assert run.end is End.TOO_MUCH_WRITTEN, run


async def stopped(sandbox: Sandbox, what: str, source: str, end: End) -> None:
    run = await sandbox.run(Program(source, **limits(end)))
    assert run.end is end, (what, run)
    assert not run.clean
    assert len(run.stdout) <= (1 << 20) + (1 << 16), what
    assert len(run.stderr) <= 4096, what


async def test_the_processor_limit_of_the_kernel_does_not_come_first(layers: frozenset[Layer]) -> None:
    """It counts ticks, and is ahead of the clock by which we judge: with too little room it kills right programs."""
    async with Sandbox(1, layers) as sandbox:
        call = asyncio.create_task(sandbox.run(Program("import time\ntime.sleep(600)", cpu_seconds=20.0)))
        (supervisor,) = pids(sandbox)
        await until(lambda: len(children_of(supervisor)) == 1)
        (child,) = children_of(supervisor)
        await until(lambda: resource.prlimit(child, resource.RLIMIT_CPU)[0] != resource.RLIM_INFINITY)
        assert resource.prlimit(child, resource.RLIMIT_CPU)[0] >= 40
        call.cancel()


async def test_limits_of_memory_and_of_a_files_size_are_errors(sandbox: Sandbox) -> None:
    hog = await sandbox.run(Program("x = []\nwhile True: x.append(bytes(1 << 24))"))
    assert (hog.end, hog.code) == (End.EXITED, 1)
    assert "MemoryError" in hog.stderr
    file = await sandbox.run(Program("import os\nos.truncate(open('f', 'w').fileno(), 1 << 40)"))
    assert "OSError" in file.stderr


async def test_a_fork_bomb_makes_no_process(sandbox: Sandbox) -> None:
    source = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    task = asyncio.create_task(sandbox.run(Program(source, cpu_seconds=1.0)))
    (supervisor,) = pids(sandbox)
    most = 0
    while not task.done():
        most = max(most, len(children_of(supervisor)))
        await asyncio.sleep(0.02)
    assert (await task).end is End.TIMED_OUT
    assert most == 1


async def test_folders_that_cannot_be_entered_are_removed(sandbox: Sandbox) -> None:
    source = "import os\nos.mkdir('a')\nopen('a/f', 'w').close()\nos.mkdir('a/b', 0)\nos.mkdir('c', 0)\nprint('made')"
    assert (await sandbox.run(Program(source))).stdout == "made\n"  # the fixture looks for what is left


async def test_programs_that_mean_well_notice_nothing(sandbox: Sandbox) -> None:
    async def output(source: str, stdin: str = "", **limits: float) -> str:
        run = await sandbox.run(Program(source, stdin, **limits))
        assert run.clean, run
        return run.stdout

    assert await output("print(sum(map(int, open(0).read().split())))", "1 2\n3\n") == "6\n"
    assert await output("print(open('/dev/stdin').read())", "text") == "text\n"
    assert await output("import sys; print(sys.stdin.read() == '\\u00e9' * 3_000_000)", "é" * 3_000_000) == "True\n"
    assert await output("") == ""
    assert await output("import sys; sys.exit(0)") == ""
    assert await output("import os; os.close(1)") == ""
    assert await output("import numpy; print(numpy.arange(3).sum())") == "3\n"
    assert await output("if __name__ == '__main__': print('main')") == "main\n"
    assert await output("print(sorted({'a', 'b', 'c'}, key=hash))") == await output(
        "print(sorted({'a', 'b', 'c'}, key=hash))"
    )
    assert (
        await output(
            "import asyncio\nasync def f(): return await asyncio.sleep(0.01, 'slept')\nprint(asyncio.run(f()))"
        )
        == "slept\n"
    )
    assert (
        await output(
            "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x')\n"
            "with tempfile.TemporaryDirectory() as d: print('ok')"
        )
        == "ok\n"
    )
    deep = (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 28)\n"
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(50_000)))\nt.start()\nt.join()"
    )
    assert await output(deep) == "50000\n"
    assert json.loads(await output("import os, json; print(json.dumps(dict(os.environ)))")).keys() >= {"HOME", "PATH"}


async def test_a_supervisor_that_is_killed_takes_its_program_with_it(layers: frozenset[Layer]) -> None:
    async with Sandbox(1, layers) as sandbox:
        (supervisor,) = pids(sandbox)
        call = asyncio.create_task(sandbox.run(Program("while True: pass")))
        await until(lambda: len(children_of(supervisor)) == 1)
        (child,) = children_of(supervisor)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: ended(child))
        assert (await sandbox.run(Program("print(1)"))).stdout == "1\n"  # a new supervisor takes its place


async def test_without_a_layer_nothing_is_run() -> None:
    with pytest.raises(SandboxUnavailable, match="Landlock: switched off; Namespaces: switched off"):
        async with Sandbox(1, frozenset()):
            pass


Attempt = tuple[str, str, dict[str, Any]]
"""What, the program, its limits."""
AS_USER = """
import asyncio, glob, json, sys
from rljob_runtime.sandbox.program import Layer, Program
from rljob_runtime.sandbox.sandbox import Sandbox
async def main(attempts, layers):
    async with Sandbox(4, frozenset(layers)) as sandbox:
        async def attempt(what, source, limits):
            run = await sandbox.run(Program(source, **limits))
            return {"what": what, "end": run.end, "clean": run.clean, "stdout": run.stdout[:80]}
        ends = await asyncio.gather(*(attempt(*each) for each in attempts))
        roots = [f"/proc/{each.pid}/root{sandbox._scratch}" for each in sandbox.pool.running()]
        left = [path for root in roots for name in ("box-*", "*/box-*") for path in glob.glob(f"{root}/{name}")]
        assert all(glob.glob(root) for root in roots), "what is left cannot be seen"
    left += glob.glob(sandbox._scratch)
    print(json.dumps({"layers": sorted(sandbox.layers), "ends": ends, "left": left}))
asyncio.run(main(json.load(sys.stdin), map(Layer, sys.argv[1:])))
"""


@pytest.fixture
def anybodys_folder() -> Iterator[Path]:
    """One that every user may read. Not below pytest's, whose parent each new session closes to others."""
    with tempfile.TemporaryDirectory(prefix="rljob-escapes-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
@pytest.mark.parametrize("wanted", [LAYERS[0], *slow(*LAYERS[1:])], ids=lambda layers: "+".join(sorted(layers)))
def test_an_ordinary_user_without_any_right_gets_the_same(anybodys_folder: Path, wanted: frozenset[Layer]) -> None:
    """As in a pod: another uid, no capabilities, no_new_privs. By an interpreter that this user may run."""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode:
        pytest.skip("no Python 3.11 outside of root's folders")
    home = Path(rljob_runtime.__file__).parents[1]
    copy = anybodys_folder
    shutil.copytree(home / "rljob_runtime" / "sandbox", copy / "rljob_runtime" / "sandbox")
    (copy / "rljob_runtime" / "__init__.py").touch()
    script = copy / "as_user.py"
    script.write_text(AS_USER)
    means_well: Attempt = ("means well", "print(6 * 7)", {})
    refused: list[Attempt] = [(what, report(code), {"run_seconds": 60.0}) for what, (code, _) in REFUSED.items()]
    endless = {**STOPPED, **WRITERS, **HIDING}
    endings: list[Attempt] = [(what, source, limits(end)) for what, (source, end) in endless.items()]
    command = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--reuid=65532", "--regid=65532", "--clear-groups"]
    done = subprocess.run(
        [*command, python, str(script), *wanted],
        input=json.dumps([means_well, *refused, *endings]),
        env={"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["layers"] == sorted(wanted)
    assert seen["left"] == []
    assert [end["what"] for end in seen["ends"]] == ["means well", *REFUSED, *endless]
    for end in seen["ends"]:
        if end["what"] in endless:
            ends = {endless[end["what"]][1], *([End.TIMED_OUT] if end["what"] in HIDING else [])}
            assert End(end["end"]) in ends, end
        else:
            assert end["clean"], end
            errors = {"42"} if end["what"] == "means well" else REFUSED[end["what"]][1]
            assert end["stdout"].strip() in errors, end
