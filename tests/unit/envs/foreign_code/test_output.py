"""Of what a program prints, the begin and the end are kept; memory and disk are bounded whatever it prints."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from rljob_env.foreign_code.output import HEAD_BYTES, TAIL_BYTES, Output, piped


@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        (b"", ""),
        (b"abcd", "abcd"),
        (b"abcdefghij", "abcdefghij"),
        (b"abcdefghijk", "abcd\n… 1 bytes left out …\nfghijk"),
        (b"abcdefghijklmnopqrst", "abcd\n… 10 bytes left out …\nopqrst"),
    ],
)
async def test_begin_and_end_are_kept_with_the_number_of_bytes_between(step: int, printed: bytes, kept: str) -> None:
    output = Output(head=4, tail=6)
    for place in range(0, len(printed), step):
        output.data_received(printed[place : place + step])
    assert output.text() == kept


async def test_long_output_of_a_program_keeps_only_its_head_and_tail() -> None:
    output = Output()
    program = "import sys; sys.stdout.write('begin'); sys.stdout.write('x' * 10_000_000); sys.exit('end')"
    async with piped(output) as log:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=log, stderr=log)
        assert await process.wait() == 1
    text = output.text()
    assert text.startswith("beginx")
    assert text.endswith("xend")
    assert output.dropped == 10_000_009 - HEAD_BYTES - TAIL_BYTES
    assert f"… {output.dropped} bytes left out …" in text


async def test_a_program_that_holds_the_pipe_is_not_waited_for() -> None:
    output = Output()
    async with piped(output) as log:
        held = os.dup(log)
        os.write(log, b"some words")
    assert output.text() == "some words"
    os.close(held)
