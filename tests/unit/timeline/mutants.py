"""Mutants of rljob_runtime.timeline."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="spans of a thread overlap",
        target="rljob_runtime.timeline.convert:threads",
        before="end <= one.since",
        after="True",
        canary=True,
        tests=("tests/unit/timeline/test_convert.py",),
    ),
    Mutant(
        name="a trace begins at the epoch",
        target="rljob_runtime.timeline.convert:trace_of",
        before="min((one.since for one in intervals), default=0.0)",
        after="0.0",
        tests=("tests/unit/timeline/test_convert.py::test_a_trace_has_the_recorded_times_and_rows",),
    ),
    Mutant(
        name="idle time has two causes",
        target="rljob_runtime.timeline.idle:idle_shares",
        before="idle = rest",
        after="pass",
        tests=("tests/unit/timeline/test_idle.py::test_idle_time_has_a_cause",),
    ),
    Mutant(
        name="a replica waits for rewards while another one generates",
        target="rljob_runtime.timeline.idle:idle_shares",
        before="subtract(union(spans for (_, name), spans in found.items() if name == REWARDS), generating)",
        after="union(spans for (_, name), spans in found.items() if name == REWARDS)",
        tests=("tests/unit/timeline/test_idle.py::test_idle_time_has_a_cause",),
    ),
    Mutant(
        name="a loaned machine is idle",
        target="rljob_runtime.timeline.idle:idle_shares",
        before='found.get((f"{machine}/worker", LOAN), [])',
        after="[]",
        tests=("tests/unit/timeline/test_idle.py::test_idle_time_has_a_cause",),
    ),
)
