"""How the filter lets files be opened: as instructions for both machines, and under the Landlock of old kernels, which
knows nothing of truncation."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_runtime.sandbox import landlock, seccomp
from rljob_runtime.sandbox.seccomp import OWN_FILES, READ_ONLY, Opening, Step

PID = 7
ALLOWED, REFUSED, ABSENT = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


def verdict(steps: list[Step], machine: str, number: int, arguments: tuple[int, ...]) -> int:
    """What the kernel does with a call: BPF as far as the filter speaks it."""
    words = {0: number, 4: seccomp._ARCHITECTURES[machine]}
    words |= {16 + 8 * index: argument & 0xFFFFFFFF for index, argument in enumerate(arguments)}
    value, place = 0, 0
    while True:
        code, yes, no, constant = steps[place]
        place += 1
        if code == 0x06:
            return constant
        if code == 0x20:
            value = words.get(constant, 0)
        elif code == 0x54:
            value &= constant
        else:
            test = {0x15: value == constant, 0x25: value > constant, 0x35: value >= constant, 0x45: value & constant}
            place += yes if test[code] else no


READ, WRITE, BOTH, NEITHER = os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_ACCMODE
NEW, EMPTY, ELSE = os.O_CREAT, os.O_TRUNC, os.O_CLOEXEC | os.O_DIRECTORY
OPENED = [
    (READ | ELSE, True, True),
    (WRITE | NEW | EMPTY | ELSE, True, False),
    (BOTH | NEW | os.O_EXCL, True, False),
    (BOTH, True, False),
    (WRITE | os.O_APPEND, True, False),
    (READ | NEW, True, False),
    (READ | EMPTY, False, False),
    (READ | EMPTY | NEW | ELSE, False, False),
    (NEITHER, False, False),
    (NEITHER | EMPTY, False, False),
]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(("flags", "own_files", "read_only"), OPENED)
def test_how_a_file_may_be_opened(machine: str, flags: int, own_files: bool, read_only: bool) -> None:
    column = ["x86_64", "aarch64"].index(machine)
    for opening, allowed in ((OWN_FILES, own_files), (READ_ONLY, read_only)):
        steps = seccomp.program(machine, PID, opening)
        expected = ALLOWED if allowed else REFUSED
        calls = {"open": (0, flags, 0), "openat": (-100, 0, flags)}
        for name, arguments in calls.items():
            number = seccomp.CONDITIONAL[name][column]
            if number is not None:
                assert verdict(steps, machine, number, arguments) == expected, name
        assert verdict(steps, machine, 437, (-100, 0, flags)) == ABSENT, "openat2"


@pytest.mark.parametrize(("opening", "expected"), [(OWN_FILES, ALLOWED), (READ_ONLY, REFUSED)])
def test_creat_is_to_open_and_empty(opening: Opening, expected: int) -> None:
    number = seccomp.CONDITIONAL["creat"][0]
    assert number is not None
    assert verdict(seccomp.program("x86_64", PID, opening), "x86_64", number, (0, 0o600)) == expected


CONFINED = """
import ctypes, errno, os, sys
from rljob_runtime.sandbox import confine_self, landlock, seccomp
from rljob_runtime.sandbox.syscalls import PR_SET_NO_NEW_PRIVS, drop_capabilities, prctl
version, sort, given, other, own = sys.argv[1:]
if version != "newest":
    landlock.version = lambda: int(version)
if sort == "worker":
    confine_self.confine_this_process(dict.fromkeys([given, os.devnull], landlock.READ))
else:
    drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict({given: landlock.READ, own: landlock.OWN})
    seccomp.install(seccomp.OWN_FILES)
    for text in ("longer", "text"):
        with open(own + "/file", "w") as file:
            file.write(text)
libc = ctypes.CDLL(None)
for path in (given, other):
    for flags in (os.O_TRUNC, os.O_ACCMODE, os.O_ACCMODE | os.O_TRUNC, os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
        try:
            os.open(path, flags)
            print("opened", path, oct(flags))
        except PermissionError:
            pass
    for call in ((libc.creat, path.encode(), 0o600), (libc.truncate, path.encode(), 0)):
        if call[0](*call[1:]) != -1:
            print("emptied", path)
print(open(given).read())
"""


@pytest.mark.parametrize("sort", ["worker", "program"])
@pytest.mark.parametrize("version", ["1", "2", "newest"])
def test_no_kernel_with_landlock_lets_a_file_be_emptied(version: str, sort: str, tmp_path: Path) -> None:
    """A set of rules that does not name truncation is what an older kernel makes of ours."""
    try:
        landlock.version()
    except OSError as error:
        pytest.skip(f"no Landlock here: {error}")
    given, other, own = tmp_path / "given", tmp_path / "other", tmp_path / "own"
    own.mkdir()
    for file in (given, other):
        file.write_text("kept")
    command = [sys.executable, "-c", CONFINED, version, sort, *map(str, (given, other, own))]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr
    assert (given.read_text(), other.read_text()) == ("kept", "kept")
    assert [path.read_text() for path in own.iterdir()] == (["text"] if sort == "program" else [])
