"""Tables of results: those that are marked as generated have the form that `rljob bench --markdown` writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_runtime.cli.bench_result import COLUMNS, figure, markdown_table
from tests.support.docs import DOCS

RESULTS = sorted((DOCS / "results").glob("*.md"))
MARKED = re.compile(
    r"^<!-- generated: rljob bench ([\w-]+) --markdown -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE
)
BY_HAND = "composed by hand from"
SIDES = {"higher", "lower", "nearest"}


def _faults(text: str) -> Iterator[str]:
    """What distinguishes the marked tables of a page from generated ones."""
    marked = list(MARKED.finditer(text))
    openings = len(re.findall("^<!-- generated", text, re.MULTILINE))
    if not len(marked) == openings == len(re.findall("^<!-- end -->", text, re.MULTILINE)):
        yield "a marker has no other side"
    for found in marked:
        name, body = found.groups()
        heading, _, table = body.strip().partition("\n\n")
        if not re.fullmatch(rf"## {re.escape(name)} \(seed \d+\)", heading):
            yield f"{name}: the heading is not the benchmark's"
        lines = [re.split(r" (?<!\\)\| ", line.removeprefix("| ").removesuffix(" |")) for line in table.splitlines()]
        if tuple(lines[0] if lines else ()) != COLUMNS:
            yield f"{name}: the columns are not {', '.join(COLUMNS)}"
        elif any(len(line) != len(COLUMNS) or not line[1] or line[3] not in SIDES for line in lines[2:]):
            yield f"{name}: a row is no figure"


def _by_hand(text: str) -> bool:
    """Whether the page's first sentence says so."""
    first = text.partition("\n\n")[2].partition(".")[0]
    return BY_HAND in first.replace("\n", " ")


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_table_of_results_is_generated_or_said_to_be_by_hand(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert list(_faults(text)) == []
    assert MARKED.search(text) or _by_hand(text)


def _page(table: str) -> str:
    return f"# A page\n\n<!-- generated: rljob bench relay --markdown -->\n{table}\n<!-- end -->\n"


TABLE = markdown_table(
    {
        "bench": "relay",
        "seed": 0,
        "figures": [figure("hop|rate", 1.003, goal=0.9), figure("stall", 1.012, better="lower")],
    }
)


def test_what_the_command_writes_is_in_form() -> None:
    assert list(_faults(_page(TABLE))) == []


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (_page(TABLE.replace("| limit |", "| best |")), "columns"),
        (_page(TABLE.replace("better | ", "", 1)), "columns"),
        (_page(TABLE.replace("1.003", "")), "no figure"),
        (_page(TABLE.replace(" | lower", "")), "no figure"),
        (_page(TABLE.replace("## relay", "## store")), "heading"),
        (_page(TABLE).replace("<!-- end -->", ""), "no other side"),
    ],
    ids=["another column", "a column is missing", "no value", "a cell is missing", "another benchmark", "no end"],
)
def test_a_marked_table_in_another_form_is_a_fault(page: str, message: str) -> None:
    assert any(message in fault for fault in _faults(page))


def test_the_first_sentence_says_that_tables_are_by_hand() -> None:
    assert _by_hand("# A page\n\nThe table of this page is composed by hand from two runs. More.\n")
    assert not _by_hand("# A page\n\nTwo runs. The table is composed by hand from them.\n")
