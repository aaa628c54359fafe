"""Mutants of profiles in rljob_runtime.coordinator.on_policy."""

from hack.mutants import Mutant

IDLE = "tests/unit/coordinator/on_policy/test_idle_profiler.py"
OVERRUN = f"{IDLE}::test_an_overrun_longer_than_predicted_is_spent_too"
IDLE_EARLY = f"{IDLE}::test_an_update_that_ends_early_ends_the_profile"

MUTANTS = (
    Mutant(
        name="a profile goes on after the update",
        target="rljob_runtime.coordinator.on_policy.idle_profiler:IdleProfiler.during_update",
        before="update.end(clock())",
        after="pass",
        tests=(IDLE_EARLY,),
    ),
    Mutant(
        name="a profile that may outlast the update ends with it",
        target="rljob_runtime.coordinator.on_policy.idle_profiler:_may_end",
        before="asyncio.sleep(plan.least_seconds)",
        after="asyncio.sleep(0)",
        tests=(f"{IDLE}::test_a_job_of_short_updates_measures_each_size_once",),
    ),
    Mutant(
        name="an overrun that was longer than predicted is free",
        target="rljob_runtime.coordinator.on_policy.idle_profiler:IdleProfiler._visit",
        before="self._overrun += max(0.0, clock() - update.ended_at - plan.overrun)",
        after="pass",
        tests=(OVERRUN,),
    ),
    Mutant(
        name="a predicted overrun is free",
        target="rljob_runtime.coordinator.on_policy.idle_profiler:IdleProfiler._begin",
        before="self._overrun += plan.overrun",
        after="pass",
        tests=(OVERRUN,),
    ),
    Mutant(
        name="a machine that evaluates measures another layout",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop.advance",
        before="self._evaluation.evaluator.active",
        after="False",
        tests=(f"{IDLE}::test_engines_that_evaluate_do_not_rest",),
    ),
    Mutant(
        name="a few loads of a profile are believed",
        target="rljob_runtime.coordinator.on_policy.idle_profiler:IdleProfiler._visit",
        before="is_enough(profile.timings)",
        after="True",
        tests=(IDLE_EARLY,),
    ),
    Mutant(
        name="a size that was refused is measured",
        target="rljob_runtime.coordinator.on_policy.idle_profiler:IdleProfiler._plan",
        before="rules.sizes - frozenset(layouts.refused(name))",
        after="rules.sizes",
        tests=(f"{IDLE}::test_a_size_that_is_refused_is_left_alone",),
    ),
    Mutant(
        name="a visit teaches nothing about switches",
        target="rljob_runtime.coordinator.on_policy.idle_profiler:IdleProfiler._visit",
        before="visit.reached",
        after="False",
        tests=(f"{IDLE}::test_a_visit_measures_the_parts_of_a_switch",),
    ),
    Mutant(
        name="a resting machine forgets how fast its KV moves",
        target="rljob_runtime.coordinator.on_policy.idle_profiler:IdleProfiler._visit",
        before="[profile.moved for profile in profiles.values()]",
        after="[]",
        tests=(
            "tests/unit/coordinator/on_policy/test_idle_profiler.py::test_copies_of_kv_are_known_before_the_first_switch",
        ),
    ),
)
