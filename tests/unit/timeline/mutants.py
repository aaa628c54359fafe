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
        name="samples of counters are moments",
        target="rljob_runtime.timeline.convert:trace_of",
        before="one.name == LEVELS",
        after="False",
        tests=("tests/unit/timeline/test_convert.py::test_samples_of_counters_are_counters",),
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
        name="a wait for environments has no cause of its own",
        target="rljob_runtime.timeline.idle:idle_shares",
        before="union([found.get((replica, ENVIRONMENTS), [])])",
        after="[]",
        tests=("tests/unit/timeline/test_idle.py::test_idle_time_has_a_cause",),
    ),
    Mutant(
        name="rewards are waited for while a replica waits for its environments",
        target="rljob_runtime.timeline.idle:idle_shares",
        before="name in (GENERATE, ENVIRONMENTS)",
        after="name == GENERATE",
        tests=("tests/unit/timeline/test_idle.py::test_idle_time_has_a_cause",),
    ),
    Mutant(
        name="packing loses the seconds of what it joins",
        target="rljob_runtime.timeline.packing:_by_name",
        before="sum((one.until or one.since) - one.since for one in same)",
        after="(same[0].until or begin) - same[0].since",
        tests=("tests/unit/timeline/test_packing.py::test_the_seconds_of_each_name_stay",),
    ),
    Mutant(
        name="packing crosses gaps",
        target="rljob_runtime.timeline.packing:packed",
        before="found[end].since == found[end - 1].until",
        after="True",
        tests=("tests/unit/timeline/test_packing.py::test_the_seconds_of_each_name_stay",),
    ),
    Mutant(
        name="a replica waits for rewards while another one generates",
        target="rljob_runtime.timeline.idle:idle_shares",
        before="subtract(union(spans for (_, name), spans in found.items() if name == REWARDS), holding)",
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
    Mutant(
        name="a machine is idle before it joins",
        target="rljob_runtime.timeline.idle:_between",
        before="there = not (moments and moments[0][1])",
        after="there = True",
        tests=("tests/unit/timeline/test_idle.py::test_a_replica_counts_while_its_machine_is_a_member",),
    ),
    Mutant(
        name="a round at whose end no machine is left has no idle shares",
        target="rljob_runtime.timeline.idle:membership",
        before="seen[one.row] = None",
        after="pass",
        tests=(
            "tests/unit/timeline/test_idle.py::test_a_replica_counts_while_its_machine_is_a_member",
            "tests/unit/coordinator/reporting/test_idle_metrics.py::"
            "test_a_round_at_whose_end_no_machine_is_left_has_the_shares_until_then",
        ),
    ),
)
