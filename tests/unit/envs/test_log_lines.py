"""The runner's log has one line for each record, whatever text of a harness it quotes."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_env.log_lines import MOST_AT_BEGINNING, MOST_AT_END, MOST_OF_TRACEBACK, LineFormatter, one_line


def logged(write: Callable[[logging.Logger], None]) -> str:
    """Return what the runner writes to a file in UTF-8."""
    taken = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    handler = logging.StreamHandler(taken)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    log = logging.Logger("runner")
    log.addHandler(handler)
    write(log)
    taken.seek(0)
    return taken.read()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("the server is gone", "WARNING a failed: the server is gone\n"),
        ("gone\nERROR all is lost", "WARNING a failed: gone\\nERROR all is lost\n"),
        ("\x1b[2Jhalf \ud83d, whole 😀 é 中", "WARNING a failed: \\x1b[2Jhalf \\ud83d, whole 😀 é 中\n"),
        (
            "x" * 5_000 + "\nthe cause",
            f"WARNING a failed: {'x' * 490} … (2520 characters) … {'x' * 1_990}\\nthe cause\n",
        ),
    ],
    ids=["plain", "line breaks", "control characters and halves", "long"],
)
def test_what_a_harness_states_is_one_bounded_line(text: str, line: str) -> None:
    assert logged(lambda log: log.warning("%s failed: %s", "a", text)) == line


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=2 * MOST_AT_END))
def test_any_text_is_a_line_that_every_file_takes(text: str) -> None:
    line = one_line(text)
    assert line.isprintable() or not text
    assert len(line.encode()) <= 10 * (MOST_AT_BEGINNING + MOST_AT_END) + 100


def test_a_traceback_keeps_its_beginning_and_the_error() -> None:
    def fail(log: logging.Logger) -> None:
        try:
            raise ValueError("first\rsecond\nERROR forged " + "x" * 10 * MOST_OF_TRACEBACK + " the end")
        except ValueError:
            log.exception("the harness failed")

    text = logged(fail)
    assert text.startswith("ERROR the harness failed\n  Traceback (most recent call last):\n")
    assert "first\\rsecond\n  ERROR forged" in text
    assert text.endswith("the end\n")
    assert len(text) < 2 * MOST_OF_TRACEBACK + 200


def test_the_runner_logs_so() -> None:
    """In a process of its own: pytest has handlers already."""
    program = (
        "from rljob_env.log_lines import log_to_stderr; import logging\nlog_to_stderr(); logging.info('a%sb', chr(10))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stderr.endswith("INFO a\\nb\n")
    assert run.stderr.count("\n") == 1
