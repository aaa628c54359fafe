"""How what programs leave behind is counted and removed, in trees that try to hide it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.sandbox import scratch
from rljob_runtime.sandbox.scratch import count_entries, remove

Tree = dict[str, "Tree | None"]
"""Folders, and files (None)."""

names = st.text("ab\udcff", min_size=1, max_size=3)
trees: st.SearchStrategy[Tree] = st.recursive(
    st.just({}), lambda below: st.dictionaries(names, st.none() | below, max_size=4), max_leaves=25
)


def plant(tree: Tree, folder: bytes) -> int:
    """Make it; returns how many entries it has."""
    for name, below in tree.items():
        path = os.path.join(folder, os.fsencode(name))
        if below is None:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        else:
            os.mkdir(path)
    return len(tree) + sum(
        plant(below, os.path.join(folder, os.fsencode(name))) for name, below in tree.items() if below is not None
    )


@given(trees, st.integers(0, 30))
def test_every_entry_is_counted_until_there_are_enough(tree: Tree, enough: int) -> None:
    folder = tempfile.mkdtemp()
    entries = plant(tree, os.fsencode(folder))
    before = len(os.listdir("/proc/self/fd"))
    assert count_entries(folder, enough) == min(entries, enough + 1)
    assert len(os.listdir("/proc/self/fd")) == before
    remove(folder)
    assert not os.path.exists(folder)


@pytest.fixture
def deep() -> Iterator[str]:
    """Two folders on each of 300 levels, with names that take 75,000 characters together."""
    folder = tempfile.mkdtemp()
    below = os.open(folder, os.O_RDONLY)
    for _ in range(300):
        for letter in "ab":
            os.mkdir(letter * 250, dir_fd=below)
        above, below = below, os.open("a" * 250, os.O_RDONLY, dir_fd=below)
        os.close(above)
    os.close(below)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_tree_may_be_deeper_than_any_path(deep: str) -> None:
    assert count_entries(deep, 1000) == 600
    assert count_entries(deep, 599) == 600
    assert count_entries(deep, 500) == 501
    remove(deep)
    assert not os.path.exists(deep)


def test_what_stays_shut_counts_as_more_than_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()

    def refused(name: str, above: int) -> int:
        if name == ".":
            return os.open(".", os.O_RDONLY, dir_fd=above)
        raise PermissionError(13, "no", name)

    monkeypatch.setattr(scratch, "_open", refused)
    assert count_entries(str(tmp_path), 1000) == 1001
    assert count_entries(str(tmp_path / "folder"), 1000) == 0


def test_a_link_is_counted_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "link").symlink_to(tmp_path)
    (tmp_path / "box" / "nowhere").symlink_to("nowhere")
    assert count_entries(str(tmp_path / "box"), 1000) == 2


HIDDEN = """
import os, stat, sys
from rljob_runtime.sandbox.scratch import count_entries, remove
os.setresgid(65532, 65532, 65532)
os.setresuid(65532, 65532, 65532)
os.chdir(sys.argv[1])
os.umask(0)
for mode in (0o000, 0o100, 0o300, 0o400):
    os.mkdir(f"box/{mode:o}", mode)
os.mkdir("box/300/300", 0o300)
for name in range(5):
    open(f"box/300/300/{name}", "w").close()
try:
    os.listdir("box/300")
except PermissionError:
    print(count_entries("box", 1000))
remove("box")
print(os.listdir("."))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_no_mode_hides_anything_from_an_ordinary_user() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/box")
        for path in (folder, f"{folder}/box"):
            os.chown(path, 65532, 65532)
        # Imports before it changes its user: the interpreter may lie in root's folders.
        done = subprocess.run([sys.executable, "-c", HIDDEN, folder], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "10\n[]\n"), done.stderr
