"""Suites: the parts of `make check`, `make test` and `make test-all`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from . import marked
from .imports import path_of
from .parts import Part
from .seconds import results

BUILD = Path("build/loop")
UNIT = f"not ({' or '.join(marked.PARTS)})"
"""Neither a cluster nor an engine, as a marker expression."""
MOST_PROCESSES = 4
"""Of unit tests, since some of them load torch."""
QUICK = "not slow"
"""One row of each family of slow tests; the others are marked."""
SECONDS = {"OnPolicy": 40, "Asynchronous": 40}
"""The budget of `make test` for simulated seeds, by mode, in seconds."""
LEAST_SEEDS, ALL_SEEDS = 50, 1000
"""Seeds of each mode: at least, in `make test`; in `make test-all`."""


def lint() -> list[Part]:
    return [Part("lint", ("hack/lint",))]


def unit(paths: Sequence[str] = ("tests",), every_row: bool = False, may_be_empty: bool = False) -> Part:
    """Return the unit tests, in one process more than there are processors: some wait, for processes and deadlines."""
    processes = min((os.cpu_count() or 1) + 1, MOST_PROCESSES)
    return _pytest("unit", UNIT, paths, every_row, may_be_empty, *_in_processes(str(processes)))


def everything(environment: Mapping[str, str], every_row: bool = False) -> list[Part]:
    """Return every kind of test. Quick parts that find most come first, and nothing is built before them."""
    return [
        # One processor is enough for it, and the unit tests leave some time of both.
        *(replace(part, background=True) for part in lint()),
        unit(every_row=every_row),
        *_seeds(every_row),
        # Sequentially, since they fill the machine with pods or engines.
        *_with_cluster(
            environment,
            # They wait for servers more than they compute.
            _pytest(
                "cluster", "cluster and not realnodes", marked.files("cluster"), every_row, False, *_in_processes("3")
            ),
            # Jobs need the processors, nodes mostly time: one process for each, with a cluster of its own.
            _pytest("real nodes", "realnodes", marked.files("realnodes"), every_row, False, *_in_processes("2")),
        ),
        _pytest(
            "engine",
            "engine and not (cluster or realnodes)",
            marked.files("engine"),
            every_row,
            False,
            *_in_processes("2"),
        ),
        *([_pytest("all minors", "all_minors", ("tests",), True)] if every_row else []),
        # All tests of all mutants are the unit tests, which have passed by then.
        Part("mutants", ("python", "-m", "hack.mutants", "--tested" if every_row else "--canaries")),
    ]


def package(tests: Sequence[str], environment: Mapping[str, str]) -> list[Part]:
    """Return every row of every kind of some test files. Nothing is built for files without tests of clusters."""
    paths = [path_of(test) for test in tests]
    clusters = [path for path in paths if path in (*marked.files("cluster"), *marked.files("realnodes"))]
    engines = [path for path in paths if path in marked.files("engine")]
    on_cluster = _pytest("cluster", "cluster or realnodes", clusters, True, True)
    return [
        unit(paths, every_row=True, may_be_empty=True),
        *(_with_cluster(environment, on_cluster) if clusters else []),
        *([_pytest("engine", "engine and not (cluster or realnodes)", engines, True, True)] if engines else []),
    ]


def _pytest(
    name: str, markers: str, paths: Sequence[str], every_row: bool, may_be_empty: bool = False, *options: str
) -> Part:
    expression = markers if every_row else f"{markers} and {QUICK}"
    command = (
        "pytest",
        "-q",
        "--durations=10",
        f"--junitxml={results(name, BUILD)}",
        *options,
        "-m",
        expression,
        *paths,
    )
    return Part(name, command, may_be_empty=may_be_empty)


def _in_processes(number: str) -> tuple[str, ...]:
    """Run one test file, or all that share a server, in one process. `hack.loop.order` chooses which comes first."""
    return ("-n", number, "--dist", "loadfile", "--no-loadscope-reorder")


def _with_cluster(environment: Mapping[str, str], *parts: Part) -> list[Part]:
    """Return tests of clusters, after the parts that they need.

    They need none if KUBECONFIG names a cluster, else the programs or a kind cluster.
    """
    if environment.get("KUBECONFIG"):
        return list(parts)
    if environment.get("CLUSTER") != "kind":
        return [Part("cluster build", ("hack/local_cluster/cluster", "build"), prepares=True), *parts]
    on_kind = ("sh", "-ec", 'KUBECONFIG=$(hack/local_cluster/cluster kubeconfig) exec "$@"', "sh")
    up = Part("cluster up", ("hack/local_cluster/cluster", "up", "--kind"), prepares=True)
    return [up, *(replace(part, command=(*on_kind, *part.command)) for part in parts)]


def _seeds(every_row: bool) -> list[Part]:
    def command(mode: str) -> str:
        budget = f"--seeds {ALL_SEEDS}" if every_row else f"--seeds {LEAST_SEEDS} --seconds {SECONDS[mode]}"
        return f"rljob simulate --mode {mode} --jobs 2 {budget}"

    return [Part("seeds", ("sh", "-ec", "\n".join(map(command, SECONDS))), background=True)]
