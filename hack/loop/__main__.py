"""Command line of the loop: `make check`, `make unit`, `make test` and `make test-all` call it.

    python -m hack.loop [--began SECONDS] check [--base COMMIT] | unit | test | test-all | package NAME

Exit status: 0 if every part passed, 1 if one did not, 2 for a package without tests.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hack.interruption import unwind_on_signals
from hack.resumable import TESTED, Resumable, state_of

from . import suites
from .choice import about, choose
from .imports import ROOT, changed, path_of, tree
from .parts import Part, Row, report, run
from .seconds import known

CHECK_SECONDS = 90.0
"""Limit of `make check` with warm caches on two processors."""
BUDGETS = {"check": CHECK_SECONDS, "test": 1500.0}
"""Seconds of a suite with warm caches on two processors. A run that takes longer warns."""
START_SECONDS = 12.0
"""Seconds until pytest's processes have collected and run the first test."""
REPORTS = Path("build/loop")
TREE = (
    *TESTED, "Makefile", "Dockerfile", "mkdocs.yml", ".importlinter", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md",
    "CHANGELOG.md", "SECURITY.md",
)  # fmt: skip
"""What the parts of `make test-all` depend on."""


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    os.chdir(ROOT)
    unwind_on_signals()
    file = REPORTS / f"{args.suite}.json"
    with report(f"make {args.suite}", file, args.began, BUDGETS.get(args.suite)) as rows:
        match args.suite:
            case "check":
                return 0 if check(args.base, rows) else 1
            case "package":
                tests = about(args.name, tree())
                if not tests:
                    print(f"no test is about {args.name}; a folder of tests/ or a package would be right")
                    return 2
                return 0 if run(suites.package(tests, os.environ), rows) else 1
            case "unit":
                return 0 if run([suites.unit(every_row=True)], rows) else 1
            case suite:
                parts = suites.everything(os.environ, every_row=suite == "test-all")
                return 0 if (all_rows(parts, rows) if suite == "test-all" else run(parts, rows)) else 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="hack/test", description="Run lint and tests; see docs/guides/development.md.")
    top.add_argument("--began", type=float, default=time.time(), help="when the set-up began, in seconds of the epoch")
    suites_ = top.add_subparsers(dest="suite", required=True, metavar="SUITE")
    item = suites_.add_parser("check", help="lint, and the unit tests that the working tree's change needs")
    item.add_argument("--base", default="HEAD", help="the commit to compare with (default: %(default)s)")
    suites_.add_parser("unit", help="the tests that need neither a cluster nor an engine")
    suites_.add_parser("test", help="every kind of test, a row of each slow family")
    suites_.add_parser("test-all", help="every row of every test, on every Kubernetes minor, and every mutant")
    item = suites_.add_parser("package", help="every kind of test of one package")
    item.add_argument("name", help="a folder of tests/, or a package: relay, scheduling, policies")
    return top


def all_rows(parts: Sequence[Part], rows: list[Row]) -> bool:
    """Run every part. They take hours: a failure hides no later one, and the next run of this tree runs what is left.

    Once all have passed, the next run begins with every part again.
    """
    passed_before = Resumable(REPORTS / "test-all-passed.json", state_of(ROOT, TREE))
    passed = run(parts, rows, go_on=True, passed_before=passed_before)
    if passed:
        passed_before.forget()
    return passed


def check(base: str, rows: list[Row]) -> bool:
    """Lint, then run the tests of the touched packages, and as many others as the rest of the budget allows."""
    began = time.monotonic()
    if not run(suites.lint(), rows):
        return False
    paths = changed(base)
    workers = min(os.cpu_count() or 1, 4)
    budget = (CHECK_SECONDS - START_SECONDS - (time.monotonic() - began)) * workers
    choice = choose(paths, tree(), known("unit"), budget)
    print(f"{len(paths)} files differ from {base}: {len(choice.run)} test files", flush=True)
    parts: list[Part] = []
    if choice.run:
        parts = [suites.unit([path_of(test) for test in choice.run], may_be_empty=True)]
    passed = run(parts, rows)
    if choice.left:
        print(f"left to `make test`: {len(choice.left)} test files, {', '.join(choice.left)}", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
