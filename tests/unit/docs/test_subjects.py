"""Subjects of commits: which are new in each kind of checkout, and their form."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hack.subjects import LENGTH, malformed, new_subjects


def _git(root: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *settings, *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose branch `main` has three commits."""
    root = tmp_path / "repository"
    root.mkdir()
    _git(root, "init", "-q", "-b", "main")
    for subject in ("Old form", "docs: second", "docs: third"):
        _git(root, "commit", "-q", "--allow-empty", "-m", subject)
    return root


def test_commits_after_the_base_are_new_on_main_and_without_a_branch(repository: Path) -> None:
    base = _git(repository, "rev-parse", "HEAD~2")
    assert new_subjects(repository, base) == ["docs: third", "docs: second"]
    _git(repository, "checkout", "-q", "--detach")
    assert new_subjects(repository, base) == ["docs: third", "docs: second"]
    assert new_subjects(repository, _git(repository, "rev-parse", "HEAD")) == []


def test_a_merge_is_not_checked(repository: Path) -> None:
    base = _git(repository, "rev-parse", "HEAD")
    _git(repository, "checkout", "-q", "-b", "side")
    _git(repository, "commit", "-q", "--allow-empty", "-m", "docs: aside")
    _git(repository, "checkout", "-q", "main")
    _git(repository, "merge", "-q", "--no-ff", "-m", "Merge it", "side")
    assert new_subjects(repository, base) == ["docs: aside"]


def test_a_shallow_clone_without_the_base_has_its_head_checked(repository: Path, tmp_path: Path) -> None:
    base = _git(repository, "rev-parse", "HEAD~2")
    _git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "shallow")
    assert new_subjects(tmp_path / "shallow", base) == ["docs: third"]


def test_a_folder_without_a_repository_has_no_subjects(tmp_path: Path) -> None:
    assert new_subjects(tmp_path) == []


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("relay: repair the chain", None),
        ("gateway, envs: four refusals say what would be right", None),
        ("docs: name `a.py`: its part", None),
        (f"docs: {'a' * (LENGTH - 6)}", None),
        (f"docs: {'a' * (LENGTH - 5)}", "121 characters"),
        ("relay: repair the chain.", "period"),
        ("Repair the chain", "area: imperative summary"),
        ("Relay: repair the chain", "area: imperative summary"),
        ("relay:repair the chain", "area: imperative summary"),
        ("relay: ", "area: imperative summary"),
        ("", "area: imperative summary"),
    ],
)
def test_the_form_of_a_subject(subject: str, message: str | None) -> None:
    found = malformed(subject)
    assert found is None if message is None else message in str(found)
