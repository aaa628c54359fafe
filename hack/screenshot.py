"""Screenshot: writes the picture of the samples page in the guide, from the folder of a run.

    rljob run examples/gsm8k-like.yaml
    python -m hack.screenshot runs/gsm8k-like [--out FILE]

A headless Chromium draws the page of `rljob samples --html`. Exit status: 0; 2 if a program or the folder is not
usable.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "docs/guides/samples-page.png"
WIDTH, HEIGHT = 1240, 2150
"""Pixels. The height has room for curves, histograms and the first samples."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 300


class NotUsable(Exception):
    """The picture cannot be made; the message says what would be right."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hack.screenshot", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder of a run, with samples")
    parser.add_argument("--out", type=Path, default=PICTURE, help="default: the picture in the guide")
    args = parser.parse_args(argv)
    try:
        take(args.folder, args.out)
    except NotUsable as error:
        print(f"screenshot: {error}", file=sys.stderr)
        return 2
    print(f"wrote {args.out}")
    return 0


def take(folder: Path, out: Path) -> None:
    """Draw the page of a run. Raises `NotUsable`."""
    if not folder.is_dir():
        raise NotUsable(f"{folder}: no such folder; the folder of a run would be right")
    if (browser := chromium()) is None:
        raise NotUsable(f"none of {', '.join(BROWSERS)} is installed; apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="screenshot-") as made:
        page = Path(made) / "page.html"
        program = "from rljob_runtime.cli import app; app()"
        _run([sys.executable, "-c", program, "samples", str(folder.resolve()), "--html", str(page)])
        _run(
            [
                *headless(browser, Path(made)),
                "--hide-scrollbars",
                f"--window-size={WIDTH},{HEIGHT}",
                f"--screenshot={out.resolve()}",
                page.as_uri(),
            ]
        )
    if not out.is_file():
        raise NotUsable(f"{browser} wrote no {out}")


def chromium() -> str | None:
    """Return the path of an installed browser."""
    return next((found for name in BROWSERS if (found := shutil.which(name)) is not None), None)


def headless(browser: str, folder: Path) -> list[str]:
    """Return the command that loads a page, without the page and what is done with it. `folder`: for its profile."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    return [browser, *options, "--virtual-time-budget=2000"]


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except subprocess.TimeoutExpired:
        raise NotUsable(f"{Path(command[0]).name} takes longer than {SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        raise NotUsable(f"{Path(command[0]).name} fails: {error.stderr.strip()[-500:]}") from None


if __name__ == "__main__":
    sys.exit(main())
