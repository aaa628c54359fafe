"""Tries mutants: applies each to a copy of the tree and demands that one of its tests fails there.

    python -m hack.mutants [--canaries | --package NAME | NAME ...] [--tested] [--trees N]

Failures of the run are: a mutant that survives, one that does not fit the code, and a test that fails without a mutant.
An interrupted run goes on where it stopped, as long as the tree is the same. Exit status: 0 if every mutant was caught,
1 if not, 2 if there is no such mutant, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hack.resumable import state_of

from .mutant import BadMutant, Mutant
from .progress import Progress
from .registry import ROOT, choose
from .trees import COPIED, Trees

PROGRESS = ROOT / "build/mutants"
UNTOUCHED_SECONDS = 1800.0
"""Limit of all tests without a mutant."""
AT_A_TIME = (os.cpu_count() or 1) + 1
"""Mutants: many of their tests wait for what never comes."""
TESTS_FAILED = 1
"""pytest's exit status when tests ran and some failed. Anything else means that the mutant broke the run itself."""


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    # SIGTERM unwinds like Ctrl-C, so that the copies are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        chosen = choose(args.names, args.package, args.canaries)
    except BadMutant as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            # A mutant that is named is always tried.
            where = Path(folder) if args.names else PROGRESS
            choice = (
                "canaries" if args.canaries else f"package-{args.package.replace('/', '-')}" if args.package else "all"
            )
            progress = Progress(where / f"{choice}.json", state_of(ROOT, COPIED))
            return Run(Trees(ROOT, Path(folder), args.trees), progress).all(chosen, args.trees, args.tested)
    except KeyboardInterrupt:
        print("mutants: interrupted; the same command continues with the mutants that are left", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m hack.mutants", description=__doc__.split("\n")[0] if __doc__ else None
    )
    what = top.add_mutually_exclusive_group()
    what.add_argument("--canaries", action="store_true", help="those of `make test`")
    what.add_argument("--package", default="", metavar="NAME", help="those below a folder of tests/unit: relay")
    what.add_argument("names", nargs="*", default=[], metavar="NAME", help="mutants by name")
    top.add_argument("--tested", action="store_true", help="the tests have passed without a mutant already")
    top.add_argument("--trees", type=int, default=AT_A_TIME, metavar="N", help="tried at a time (default: %(default)s)")
    return top


class Run:
    """One run over the chosen mutants."""

    def __init__(self, trees: Trees, progress: Progress) -> None:
        self._trees, self._progress = trees, progress
        self._lock, self._stopped = threading.Lock(), threading.Event()

    def all(self, chosen: Sequence[Mutant], at_a_time: int, tested: bool = False) -> int:
        """Try the mutants that are left, and report. Returns the exit status.

        Their tests must pass without a mutant too, unless they were `tested`.
        """
        left = self._progress.left(chosen)
        if len(left) < len(chosen):
            print(f"{len(chosen) - len(left)} mutants were caught before the interruption", flush=True)
        pool = ThreadPoolExecutor(at_a_time)
        try:
            tests = () if tested else tuple(sorted({test for mutant in left for test in mutant.tests}))
            untouched = pool.submit(self._untouched, tests)
            caught = list(pool.map(self._caught, left))
            healthy = untouched.result()
        finally:
            self._stopped.set()
            self._trees.stop()
            pool.shutdown(cancel_futures=True)
        survived = [mutant.name for mutant, was_caught in zip(left, caught, strict=True) if not was_caught]
        print(f"mutants: {len(chosen) - len(survived)} caught, {len(survived)} survived")
        for name in survived:
            print(f"  survived: {name}")
        self._progress.end()
        return 1 if survived or not healthy else 0

    def _untouched(self, tests: tuple[str, ...]) -> bool:
        if not tests:
            return True
        status, output = self._trees.test(tests, UNTOUCHED_SECONDS)
        if status != 0:
            print(f"{output[-4000:]}\nmutants: these tests must pass without any mutant", flush=True)
            return False
        print("the tests pass without any mutant", flush=True)
        return True

    def _caught(self, mutant: Mutant) -> bool:
        if self._stopped.is_set():
            return False
        started = time.monotonic()
        try:
            status, output = self._trees.test_with(mutant)
        except BadMutant as error:
            print(error, flush=True)
            return False
        if self._stopped.is_set():
            return False
        seconds = f"{time.monotonic() - started:.0f} s"
        if status != TESTS_FAILED:
            print(f"SURVIVED {mutant.name} ({seconds})\n{output[-2000:]}", flush=True)
            return False
        failed = next((line for line in output.splitlines() if line.startswith("FAILED ")), "")
        print(f"caught   {mutant.name} ({seconds}): {failed.partition('::')[2]}", flush=True)
        with self._lock:
            self._progress.add(mutant)
        return True


if __name__ == "__main__":
    sys.exit(main())
