"""The glossary's last column is a dictionary; `hack.words` finds its words in texts, names and subjects of commits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hack import words
from hack.words import Allowance, Found, allowances, in_subjects, refused, search
from tests.support.docs import page, quoted, rows
from tests.support.paths import ROOT

GLOSSARY = page("glossary.md")
TABLES = [
    line.removeprefix("## ")
    for line in GLOSSARY.read_text(encoding="utf-8").splitlines()
    if line.startswith("## ") and line != "## Papers"
]
ROWS = [row for table in TABLES for row in rows(GLOSSARY, f"## {table}")]
WORDS = {"herd": "replica pool", "lent": "loan"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_term_has_a_short_meaning_and_a_place(row: list[str]) -> None:
    _, meaning, place, _ = row
    assert 0 < len(meaning.split()) <= 20
    for name in quoted(place):
        assert (ROOT / name).exists() or (ROOT / "runtime/rljob_runtime" / name).exists(), name


def test_no_term_is_defined_twice() -> None:
    terms = [term.strip() for row in ROWS for term in row[0].split(",")]
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


def test_the_dictionary_has_the_words_of_the_last_column() -> None:
    found = refused(GLOSSARY.read_text(encoding="utf-8"))
    assert found["herd"] == "replica pool"
    assert len(found) > 30


def test_the_last_column_has_nothing_that_lint_does_not_refuse() -> None:
    cells = [row[3] for row in ROWS]
    assert [cell for cell in cells if re.sub("`[a-z ]+`", "", cell).replace(",", "").strip()] == []


def test_a_meaning_uses_no_refused_word() -> None:
    found = refused(GLOSSARY.read_text(encoding="utf-8"))
    texts = " ".join(f"{row[0]} {row[1]}" for row in ROWS)
    assert [word for word in found if re.search(rf"\b{word}\b", texts, re.IGNORECASE)] == []


def test_a_word_is_found_in_texts_and_inside_names(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('lent_machines = lentMachines = "a Herd"\nsilent = shepherd = heRd = 1\n')
    found = sorted(search(["."], WORDS, tmp_path), key=lambda one: (one.line, one.word))
    assert [(one.path, one.line, one.word) for one in found] == [
        ("a.py", 1, "Herd"),
        ("a.py", 1, "lent"),
        ("a.py", 1, "lent"),
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("It ends\nat once.\n", [2]),
        ("def is_told_at_once(): AT_ONCE\n", [1, 1]),
        ("# It ends at\n    # once.\n", [1]),
        ("what once was; at onces\n", []),
    ],
    ids=["text", "names", "comment", "others"],
)
def test_a_phrase_is_found_in_texts_names_and_over_lines(text: str, lines: list[int], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "picture.png").write_bytes(b"\x89at once")
    (tmp_path / "uv.lock").write_text("at once")
    found = list(search(["."], {"at once": "immediately"}, tmp_path))
    assert [(one.path, one.line, one.instead) for one in found] == [("a.py", line, "immediately") for line in lines]


def test_a_phrase_is_found_in_subjects_of_commits() -> None:
    found = in_subjects(["docs: end At once", "docs: end what once was"], {"at once": "immediately"})
    assert [(one.path, one.word) for one in found] == [("commit 'docs: end At once'", "at once")]


def test_a_word_is_found_in_subjects_of_commits() -> None:
    found = in_subjects(["coordinator: name the Herd a pool", "docs: mend nothing"], WORDS)
    assert [(one.word, one.instead) for one in found] == [("Herd", "replica pool")]


def test_an_allowance_covers_its_place_and_word() -> None:
    found = Found("runtime/store/schema.py", 3, "Lent", "loan")
    assert Allowance("runtime/store/", "lent").covers(found)
    assert Allowance("runtime/", "*").covers(found)
    assert not Allowance("runtime/store/", "herd").covers(found)
    assert not Allowance("tests/", "lent").covers(found)


def test_allowances_are_read_with_comments() -> None:
    text = "# A name on the wire.\nruntime/a.py lent herd  # both\n\n"
    assert allowances(text) == [Allowance("runtime/a.py", "lent"), Allowance("runtime/a.py", "herd")]


@pytest.mark.parametrize("cell", ["`Herd`", "`sit  down`", "`sub-herd`"])
def test_a_glossary_that_refuses_what_is_no_word_is_no_dictionary(cell: str) -> None:
    with pytest.raises(ValueError, match="no word or phrase"):
        refused(f"| a | b | c | {cell} |")


def test_one_word_has_one_replacement() -> None:
    with pytest.raises(ValueError, match="two rows"):
        refused("| a | b | c | `herd` |\n| d | b | c | `herd` |")


def test_a_failure_of_codespell_is_no_clean_tree(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        list(search(["--no-such-option"], WORDS, tmp_path))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with one refused word, *herd*, and no file yet."""
    (tmp_path / "glossary.md").write_text("| replica pool | b | c | `herd` |")
    (tmp_path / "allowed.txt").write_text("")
    monkeypatch.setattr(words, "GLOSSARY", tmp_path / "glossary.md")
    monkeypatch.setattr(words, "ALLOWED", tmp_path / "allowed.txt")
    monkeypatch.setattr(words, "tracked", lambda: ["a.txt"])
    monkeypatch.setattr(words, "subjects", lambda: [])
    monkeypatch.setattr(words, "search", lambda paths, known: search(paths, known, tmp_path))
    monkeypatch.setattr("sys.argv", ["words"])
    return tmp_path


@pytest.mark.parametrize(
    ("text", "allowed", "printed"),
    [
        ("a herd", "", "a.txt:1: 'herd': write replica pool\n"),
        ("a herd", "a.txt herd", ""),
        ("a pool", "", ""),
    ],
    ids=["refused", "allowed", "clean"],
)
def test_main_fails_for_a_refused_word(
    text: str, allowed: str, printed: str, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "a.txt").write_text(text)
    (tree / "allowed.txt").write_text(allowed)
    assert words.main() == (1 if printed else 0)
    assert capsys.readouterr().out == printed


def test_main_fails_for_a_subject_of_a_commit(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "a.txt").write_text("")
    monkeypatch.setattr(words, "subjects", lambda: ["docs: grow the herd"])
    assert words.main() == 1


def test_main_fails_for_the_form_of_a_subject(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "a.txt").write_text("")
    monkeypatch.setattr(words, "subjects", lambda: ["Grow the pool"])
    assert words.main() == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("docs: grow the pool\n\nThe herd was small.\n", 0),
        ("# A comment.\n\ndocs: grow the herd\n", 1),
        ("Grow the pool\n", 1),
        ("Merge branch 'main'\n", 0),
        ("# Nothing.\n", 0),
    ],
)
def test_a_message_is_checked_before_it_is_a_commit(
    message: str, code: int, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "message").write_text(message)
    monkeypatch.setattr("sys.argv", ["words", "--message", str(tree / "message")])
    assert words.main() == code


def test_prune_removes_needless_allowances(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "a.txt").write_text("a herd")
    (tree / "allowed.txt").write_text("# Names.\na.txt herd lent\nb.txt lent\n")
    monkeypatch.setattr("sys.argv", ["words", "--prune"])
    assert words.main() == 0
    assert (tree / "allowed.txt").read_text() == "# Names.\na.txt herd\n"


def test_no_allowance_is_needless() -> None:
    """The list only shrinks."""
    found = list(search(words.tracked(), refused(GLOSSARY.read_text(encoding="utf-8"))))
    allowed = allowances(words.ALLOWED.read_text(encoding="utf-8"))
    assert words.needless(allowed, found) == [], "run: python -m hack.words --prune"
