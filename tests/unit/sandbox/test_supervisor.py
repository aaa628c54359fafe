"""The sandbox's own parts: what programs may import, which messages are believed, and supervisors that do not come."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import rljob_runtime
from rljob_runtime.sandbox import framing, sandbox
from rljob_runtime.sandbox.framing import MessageTooLong
from rljob_runtime.sandbox.program import Layer, Program, SandboxFailed, SandboxUnavailable
from rljob_runtime.sandbox.sandbox import Sandbox

IN_A_VENV = """
import asyncio
from rljob_runtime.sandbox.program import Program
from rljob_runtime.sandbox.sandbox import Sandbox

async def main():
    async with Sandbox(1) as sandbox:
        run = await sandbox.run(Program("import only_in_the_venv; print(only_in_the_venv.VALUE)"))
        print(run.stdout or run.stderr)

asyncio.run(main())
"""


def test_a_program_may_import_what_lies_only_in_our_venv(tmp_path: Path) -> None:
    """As in the image, whose packages are in one."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "only_in_the_venv.py").write_text("VALUE = 'found'\n")
    home = str(Path(rljob_runtime.__file__).parents[1])
    done = subprocess.run(
        [tmp_path / "venv/bin/python", "-c", IN_A_VENV], env={**os.environ, "PYTHONPATH": home}, capture_output=True
    )
    assert done.stdout.decode().strip() == "found", done.stderr.decode()


INSTALLED = """
import asyncio, json, sys
from rljob_runtime.sandbox.program import Layer, Program
from rljob_runtime.sandbox.sandbox import Sandbox

LOOK = '''
import json, os
import neighbour, neighbours.inner
def read(path):
    try:
        return bool(open(path).read() is not None)
    except OSError:
        return False
print(json.dumps([neighbour.VALUE, neighbours.inner.VALUE, [path for path in PATHS if read(path)]]))
'''

async def main():
    layers = frozenset(map(Layer, json.loads(sys.argv[1])))
    async with Sandbox(1, layers) as sandbox:
        run = await sandbox.run(Program(f"PATHS = {sys.argv[2:]!r}" + LOOK))
        print(json.dumps(sorted(sandbox.layers)), (run.stdout or run.stderr).strip(), sep="\\n")

asyncio.run(main())
"""


@pytest.mark.parametrize("layer", Layer)
def test_a_program_reads_nothing_of_the_package_that_runs_it(layer: Layer, tmp_path: Path) -> None:
    """As in the image: our package lies beside those that a program may import, with the data that comes with it, and
    the tests in that data have the outputs that a program is to print."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    ours = Path(rljob_runtime.__file__).parent
    for part in ("__init__.py", "sandbox", "data/shipped"):
        source, target = ours / part, packages / "rljob_runtime" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    (packages / "rljob-1.0.dist-info").mkdir()
    (packages / "rljob-1.0.dist-info" / "METADATA").write_text("Name: rljob")
    (packages / "neighbour.py").write_text("VALUE = 'one'\n")
    (packages / "neighbours").mkdir()
    (packages / "neighbours" / "inner.py").write_text("VALUE = 'two'\n")
    secrets = [path for path in packages.glob("rljob*/**/*") if path.is_file()]
    assert any(path.name == "addition-programs.jsonl" for path in secrets)
    command = [str(tmp_path / "venv/bin/python"), "-c", INSTALLED, json.dumps([layer]), *map(str, secrets)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    if "nothing keeps a program" in done.stderr:
        pytest.skip(f"this machine has no {layer}")
    layers, found = done.stdout.splitlines() if done.returncode == 0 else ("", done.stderr)
    assert (layers, json.loads(found)) == (json.dumps([layer]), ["one", "two", []]), found


@pytest.mark.parametrize("sent", [(1 << 62).to_bytes(8, "little"), (3).to_bytes(8, "little") + b"{x}", b"\1" * 3])
async def test_what_is_no_message_ends_the_talk(sent: bytes) -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(sent)
    if len(sent) < framing.LENGTH_BYTES:
        stream.feed_eof()
    async with asyncio.timeout(60):
        assert await framing.receive(stream) is None


async def test_a_program_that_is_too_long_is_our_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Sandbox(1) as opened:
        monkeypatch.setattr(framing, "LONGEST_BYTES", 1000)
        with pytest.raises(MessageTooLong, match=r"a message of 2\d+ bytes; at most 1000 would be right"):
            framing.encode({"stdin": "x" * 2000})
        with pytest.raises(SandboxFailed, match="too long"):
            await opened.run(Program("", "x" * 2000))
        assert (await opened.run(Program("print(1)"))).stdout == "1\n"
    assert opened.processes_started == 1


async def test_a_later_supervisor_that_does_not_come_is_our_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Sandbox(2) as opened:

        async def unavailable(self: object) -> None:
            raise SandboxUnavailable("Landlock is gone")

        async with opened.pool.acquire():
            with monkeypatch.context() as patch:
                patch.setattr(sandbox._Supervisor, "ready", unavailable)
                with pytest.raises(SandboxFailed, match="Landlock is gone"):
                    await opened.run(Program("print(1)"))
            with monkeypatch.context() as patch:
                patch.setattr(sys, "executable", "/nonexistent/python")
                with pytest.raises(SandboxFailed, match=r"a sandbox could not be started: .*No such file"):
                    await opened.run(Program("print(1)"))
        assert (await opened.run(Program("print(1)"))).stdout == "1\n"
