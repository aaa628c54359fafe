"""What the documents point at is there: files, headings, modules, tests and mutants."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from hack.mutants.registry import every
from tests.support.docs import DOCS, INDEX, PAGES, text_of
from tests.support.paths import ROOT

NOTES = sorted((DOCS / "internals").rglob("*.md"))


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`((?:[\w.-]+/)*test_\w+\.py|tests/[\w/.-]+)(?:::\w+)?`")
FOLDERS = ("bench", "charts", "crds", "examples", "hack", "operator", "runtime")
ENDS = {".py", ".yaml", ".yml", ".tpl", ".txt", ".md", ""}
MUTANTS = re.compile(r"Mutants?:\s+((?:(?:- )?\*[^*]+\*(?:,|;|,? and)?\s*)+)")
"""In a sentence, or in a list below."""


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
    """By their path from the root: names alone are not unique."""
    assert [path for path in TEST.findall(text_of(page)) if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_index() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall(text_of(INDEX)) if "://" not in link}
    pages = {path for path in PAGES if path.is_relative_to(DOCS)} - {INDEX}
    assert sorted(str(path.relative_to(DOCS)) for path in pages - linked) == []


@pytest.mark.parametrize(("page", "most"), [("README.md", 120), ("ARCHITECTURE.md", 250), ("CONTRIBUTING.md", 200)])
def test_a_first_page_stays_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= most


def test_no_two_pages_have_one_name() -> None:
    names = Counter(path.name for path in PAGES if path.name != "README.md")
    assert [name for name, count in names.items() if count > 1] == []


def test_pages_that_are_named_in_texts_of_the_sources_exist() -> None:
    """As in "see docs/guides/kueue.md", in code, examples, the chart and tools."""
    sources = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in ENDS
    ]
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in sources
        for name in re.findall(r"(?<![\w/])docs/[\w/-]+\.(?:md|lua|svg)", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert sorted((source, name) for source, name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.name)
def test_mutants_that_a_note_names_exist(note: Path) -> None:
    names = {mutant.name for mutant in every()}
    assert [name for name in _named(text_of(note)) if name not in names] == []


def _named(text: str) -> list[str]:
    """The mutants that a note names."""
    told = [part for found in MUTANTS.findall(text) for part in re.findall(r"\*([^*]+)\*", found)]
    return [" ".join(part.split()) for part in told]


@pytest.mark.parametrize(
    "text",
    [
        "It stops. Mutants: *a*,\n*b\nc*. More of *it*.\n",
        "It stops. Mutants:\n*a*, *b c*.\n",
        "It stops. Mutants:\n\n- *a*\n- *b\n  c*\n\nThat is *not* one.\n",
    ],
    ids=["a sentence", "a sentence on a line of its own", "a list"],
)
def test_mutants_are_named_in_sentences_and_lists(text: str) -> None:
    assert _named(text) == ["a", "b c"]
