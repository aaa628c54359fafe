"""Every benchmark is one that `make bench` runs."""

from __future__ import annotations

import re
import tomllib

from tests.support.paths import ROOT

NEEDS_A_GPU = {"gpu"}


def test_make_bench_runs_every_benchmark_that_needs_no_gpu() -> None:
    project = tomllib.loads((ROOT / "bench/pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = re.findall(r"^BENCHES := (.*)$", makefile, re.MULTILINE)[0].split()
    assert sorted(listed) == sorted(set(project["entry-points"]["rljob.benchmarks"]) - NEEDS_A_GPU)
