"""What the documents point at is there: files, headings, modules, tests and sabotages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTES = sorted((ROOT / "docs" / "design").glob("*.md"))

sys.path.append(str(ROOT / "tests" / "sabotage"))

from mutants import MUTANTS  # noqa: E402

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`(?:tests/(\w+)/)?(test_\w+)\.py`")
SABOTAGES = re.compile(r"Sabotages?: (.*?\.)$", re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    """Without code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    titles = re.findall(r"^#+ (.*)$", text_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(text_of(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_are_named_exist(page: Path) -> None:
    known = {path.stem: path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    named = TEST.findall(text_of(page))
    assert [name for room, name in named if name not in known or (room and known[name] != room)] == []


def test_every_design_note_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [note.name for note in NOTES if f"(design/{note.name})" not in index] == []


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.name)
def test_sabotages_that_a_note_names_exist(note: Path) -> None:
    names = {mutant.name for mutant in MUTANTS}
    told = [part for found in SABOTAGES.findall(text_of(note)) for part in re.findall(r"\*([^*]+)\*", found)]
    assert [name for name in (" ".join(part.split()) for part in told) if name not in names] == []
