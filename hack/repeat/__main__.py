"""`python -m hack.repeat`: repeats unit tests on a machine that other processes load, and counts failures.

    python -m hack.repeat [--times N] [--load N] waiting | unit

`waiting` are the test files that wait for real time, 20 times; `unit` is the suite of `make test`, 5 times. An
interrupted campaign continues after the passes that ended, as long as the tree is the same. Exit status: 0 if no test
failed in any pass, 1 if one did, 2 if pytest itself failed, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from hack.interruption import run_to_end
from hack.loop import suites
from hack.loop.imports import ROOT
from hack.resumable import TESTED, state_of

from .load import load
from .passes import Pass, Passes, pass_of, table
from .waiting import waiting

TIMES = {"waiting": 20, "unit": 5}
FOLDER = Path("build/repeat")
TESTS_FAILED = 1
"""pytest's exit status when tests ran and some failed."""


class NoResults(Exception):
    """pytest ended without results."""


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    os.chdir(ROOT)
    # SIGTERM unwinds like Ctrl-C, so that the load ends too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    passes = Passes(FOLDER / f"{args.tests}.json", f"{state_of(ROOT, TESTED)} {args.load}")
    try:
        with load(args.load):
            repeat(passes, args.times or TIMES[args.tests], command(args.tests))
    except KeyboardInterrupt:
        print("repeat: interrupted; the same command continues with the passes that are left", file=sys.stderr)
        return 130
    except NoResults as error:
        print(f"repeat: {error}", file=sys.stderr)
        return 2
    print(table(passes.done))
    passes.forget()
    return 1 if any(one.failed for one in passes.done) else 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m hack.repeat", description="Repeat unit tests under load.")
    top.add_argument("tests", choices=sorted(TIMES), help="the files that wait for real time, or all unit tests")
    top.add_argument("--times", type=int, default=0, metavar="N", help="passes (default: 20 and 5)")
    processes = os.cpu_count() or 1
    top.add_argument(
        "--load",
        type=int,
        default=processes,
        metavar="N",
        help="processes that compute meanwhile (default: one for each processor)",
    )
    return top


def command(tests: str) -> tuple[str, ...]:
    """Return the command of one pass, without the option that names its results."""
    paths = [str(file) for file in waiting(Path("tests/unit"))] if tests == "waiting" else ["tests"]
    return suites.unit(paths).command


def repeat(passes: Passes, times: int, tests: Sequence[str]) -> None:
    """Run the passes that are left. Raises NoResults if pytest could not run the tests."""
    results = FOLDER / "results.xml"
    while len(passes.done) < times:
        results.unlink(missing_ok=True)
        began = time.monotonic()
        status = run_to_end([*tests, f"--junitxml={results}"])
        if status not in (0, TESTS_FAILED) or not results.exists():
            raise NoResults(f"pytest ended with status {status} and no usable results; see its output above")
        try:
            one = pass_of(results, time.monotonic() - began)
        except ElementTree.ParseError as error:
            raise NoResults(f"{results} is not what pytest writes: {error}") from error
        passes.add(one)
        print(_line(len(passes.done), times, one), flush=True)


def _line(number: int, times: int, one: Pass) -> str:
    return f"── pass {number}/{times}: {one.tests} tests, {len(one.failed)} failed, {one.seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
