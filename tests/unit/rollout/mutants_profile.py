"""Mutants of profiles in rljob_runtime.rollout."""

from hack.mutants import Mutant

PROFILE = "tests/unit/rollout/test_engine_profile.py"

MUTANTS = (
    Mutant(
        name="tokens of a profile count as the engines own",
        target="rljob_runtime.rollout.engine_profile:EngineProfiler.end",
        before="self._hidden[name] += getattr(stats, name) - getattr(profile.before, name)",
        after="pass",
        tests=(f"{PROFILE}::test_totals_go_on_after_a_profile",),
    ),
    Mutant(
        name="a profile outlasts its time",
        target="rljob_runtime.rollout.engine_profile:_Profile.record",
        before="now >= self.until",
        after="False",
        tests=(f"{PROFILE}::test_a_profile_ends_in_time",),
    ),
    Mutant(
        name="a step of prefill counts as a decode step",
        target="rljob_runtime.rollout.engine_profile:_Load.record",
        before="len(self._made) == len(self.ids)",
        after="True",
        tests=(f"{PROFILE}::test_each_load_is_timed_exactly_and_leaves_no_trace",),
    ),
    Mutant(
        name="a request waits for the end of a profile",
        target="rljob_runtime.rollout.replica:RolloutReplica._command.serve",
        before="self._profiler.end(engine)",
        after="pass",
        tests=(f"{PROFILE}::test_a_real_engine_is_profiled_and_goes_on_as_before",),
    ),
    Mutant(
        name="a profile moves KV of each load",
        target="rljob_runtime.rollout.engine_profile:_Profile.is_at_largest",
        before="self.load.point == self._largest",
        after="True",
        tests=(f"{PROFILE}::test_kv_is_moved_once_at_the_largest_load_that_was_measured",),
    ),
    Mutant(
        name="a profile whose time is over moves KV",
        target="rljob_runtime.rollout.engine_profile:EngineProfiler.stepped",
        before="self._clock() < profile.until",
        after="True",
        tests=(f"{PROFILE}::test_no_kv_is_moved_after_the_end_of_a_profile",),
    ),
    Mutant(
        name="a probe of KV leaves its file",
        target="rljob_runtime.rollout.kv_exchange:KvExchange.probe",
        before="writer.close()",
        after="pass",
        tests=(
            "tests/unit/rollout/engines/test_kv_transfer.py::"
            "test_a_resting_engine_measures_copies_of_its_kv_and_keeps_it[Reference]",
        ),
    ),
    Mutant(
        name="a probe of KV has no bound",
        target="rljob_runtime.rollout.kv_exchange:KvExchange.probe",
        before="held and nbytes > PROBED_BYTES",
        after="False",
        tests=("tests/unit/rollout/engines/test_kv_transfer.py::test_a_profile_moves_kv_within_its_bounds",),
    ),
)
