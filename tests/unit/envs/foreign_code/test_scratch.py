"""What a runner wrote is removed: by itself at its end, and by the next runner if it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rljob_env.foreign_code.scratch import FOLDER, LOCK, PREFIX, scratch_root

RUNNER = """
import os, sys, tempfile
from rljob_env.foreign_code.scratch import scratch_root
with scratch_root():
    inner = tempfile.mkdtemp()
    os.mkdir(inner + "/locked")
    open(inner + "/locked/file", "w").close()
    os.chmod(inner + "/locked", 0)
    print(inner, flush=True)
    sys.stdin.read()
"""


def runner() -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a file in its scratch folder, and waits."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", RUNNER], **pipes)  # type: ignore[call-overload]
    return process, Path(process.stdout.readline().strip())


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_temporary_files_are_below_the_scratch_folder_and_removed_with_it(temporary: Path) -> None:
    with scratch_root() as root:
        assert Path(tempfile.mkdtemp()).parent == root
        assert root.parent == temporary
    assert list(temporary.iterdir()) == []
    assert Path(tempfile.gettempdir()) == temporary


def test_what_a_killed_runner_left_is_removed_by_the_next_one(temporary: Path) -> None:
    process, folder = runner()
    living, kept = runner()
    try:
        process.kill()
        process.wait()
        assert folder.exists()
        with scratch_root():
            assert not folder.parent.exists()
            assert kept.exists(), "another runner that lives keeps its own"
    finally:
        living.communicate("", timeout=30)
    assert list(temporary.iterdir()) == []


def test_what_is_no_folder_of_a_runner_stays(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    precious = tmp_path_factory.mktemp("precious")
    (precious / "file").write_text("")
    (temporary / f"{PREFIX}x{LOCK}").write_text("")
    os.symlink(precious, temporary / f"{PREFIX}x{FOLDER}")
    os.symlink(precious / "file", temporary / f"{PREFIX}y{LOCK}")
    with scratch_root():
        pass
    assert (precious / "file").exists()
