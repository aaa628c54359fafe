"""The site is built from the pages as they are: navigation from the index, links that leave the site, strictness."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hack.site.pages import navigation, rewritten
from tests.support.docs import DOCS
from tests.support.paths import ROOT


def _build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = _build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/project/architecture.html").exists()


@pytest.mark.parametrize(
    ("name", "text", "warning"),
    [
        ("good.md", "# Good\n[a](README.md#index)", ""),
        ("orphan.md", "# Nowhere listed", "not included in the"),
        ("good.md", "# T\n[a](nothing.md)", "nothing.md"),
        ("good.md", "# T\n[a](README.md#nothing)", "#nothing"),
    ],
    ids=["good", "orphan", "broken link", "broken anchor"],
)
def test_a_fault_ends_the_build(name: str, text: str, warning: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "hack/site", tmp_path / "hack/site")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/README.md").write_text("# Index\n\n## Guides\n\n[good](good.md)\n")
    (tmp_path / "docs/good.md").write_text("# Good")
    (tmp_path / "docs" / name).write_text(text)
    done = _build(tmp_path, tmp_path / "site")
    assert (done.returncode != 0) == bool(warning)
    assert warning in done.stderr


def test_every_page_is_in_one_section_of_the_navigation() -> None:
    sections = navigation((DOCS / "README.md").read_text(encoding="utf-8"))
    listed = [page for section in sections for pages in section.values() for page in pages]
    assert len(listed) == len(set(listed))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}
    assert pages - set(listed) == set()


@pytest.mark.parametrize(
    ("source", "link", "becomes"),
    [
        ("guides/a.md", "[x](../reference/b.md#c)", "[x](../reference/b.md#c)"),
        ("guides/a.md", "[x](../../README.md)", "[x](../project/overview.md)"),
        ("guides/a.md", "[x](../../hack/lint)", "x"),
        ("guides/a.md", "[x](#c)", "[x](#c)"),
        ("guides/a.md", "[x](https://a.example)", "[x](https://a.example)"),
        ("project/overview.md", "[x](docs/guides/a.md)", "[x](../guides/a.md)"),
        ("project/overview.md", "![x](docs/p.svg)", "![x](../p.svg)"),
        ("guides/a.md", "```\n[x](../../hack/lint)\n```", "```\n[x](../../hack/lint)\n```"),
    ],
)
def test_links_are_rewritten_for_the_site(source: str, link: str, becomes: str) -> None:
    assert rewritten(link, source) == becomes
