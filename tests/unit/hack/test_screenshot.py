"""The picture of the samples page is made from the folder of a run, by the browser that draws it for readers."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from hack import screenshot
from rljob_runtime.samples import Sample, SampleFolder, SampleOutcome
from tests.support.browser import browser
from tests.support.paths import ROOT

SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A small run: two rounds with samples."""
    folder = tmp_path / "small-run"
    for number in (1, 2):
        found = [
            Sample(round=number, prompt_id="0.1", sample=place, attempt=1, outcome=SampleOutcome.TRAINED, reward=place)
            for place in range(3)
        ]
        SampleFolder(folder).write(number, found, keep=9)
    lines = [json.dumps({"round": number, "reward": number / 4}) + "\n" for number in (1, 2)]
    (folder / "rounds.jsonl").write_text("".join(lines))
    return folder


def picture(file: Path) -> tuple[int, int, set[bytes]]:
    """Width, height, and the different rows of a PNG."""
    raw, at, data = file.read_bytes(), 8, b""
    assert raw.startswith(SIGNATURE)
    width, height = struct.unpack(">II", raw[16:24])
    while at < len(raw):
        (length,) = struct.unpack(">I", raw[at : at + 4])
        if raw[at + 4 : at + 8] == b"IDAT":
            data += raw[at + 8 : at + 8 + length]
        at += 12 + length
    pixels = zlib.decompress(data)
    stride = len(pixels) // height
    return width, height, {pixels[row * stride : (row + 1) * stride] for row in range(height)}


@pytest.mark.timeout(900)
def test_a_picture_of_a_run_is_drawn(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    browser()
    out = tmp_path / "page.png"
    assert screenshot.main([str(run), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    width, height, rows = picture(out)
    assert (width, height) == (screenshot.WIDTH, screenshot.HEIGHT)
    assert len(rows) > 100, "curves and texts, no empty page"


def test_the_picture_in_the_guide_has_that_size() -> None:
    assert screenshot.PICTURE.relative_to(ROOT) == Path("docs/guides/samples-page.png")
    assert picture(screenshot.PICTURE)[:2] == (screenshot.WIDTH, screenshot.HEIGHT)


def test_what_is_not_usable_is_told(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    out = run / "page.png"
    assert screenshot.main([str(run / "nowhere"), "--out", str(out)]) == 2
    assert "nowhere: no such folder; the folder of a run would be right" in capsys.readouterr().err
    monkeypatch.setattr(screenshot, "BROWSERS", ("no-such-browser",))
    assert screenshot.main([str(run), "--out", str(out)]) == 2
    assert "none of no-such-browser is installed; apt-get install chromium" in capsys.readouterr().err
    assert not out.exists()
