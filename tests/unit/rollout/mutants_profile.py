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
)
