"""Mutants of rljob_runtime.scheduling.adaptive_tp.idle_profile."""

from hack.mutants import Mutant

IDLE = "tests/unit/scheduling/adaptive_tp/test_idle_profile.py"
OVERRUN = "tests/unit/scheduling/adaptive_tp/test_idle_overrun.py"
OVERRUN_TABLE = f"{OVERRUN}::test_a_visit_outlasts_an_update_if_the_job_affords_it"
IDLE_TABLE = f"{IDLE}::test_a_resting_machine_measures_what_is_new_if_there_is_time"

MUTANTS = (
    Mutant(
        name="a profile may take as long as the update",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:SHARE",
        before="0.7",
        after="1.0",
        tests=(f"{IDLE}::test_a_profile_leaves_a_part_of_the_update",),
    ),
    Mutant(
        name="a profile that delayed a stage is repeated",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:Rest.seconds",
        before="2**self.delays",
        after="1",
        tests=(IDLE_TABLE,),
    ),
    Mutant(
        name="a resting machine forgets its way back",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:_decide",
        before="SLOW * (there + back)",
        after="SLOW * there",
        tests=(IDLE_TABLE,),
    ),
    Mutant(
        name="a layout that is known is measured before one that is not",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:_plan_in_time",
        before="(size in known, visits[size], size)",
        after="(visits[size], size)",
        tests=(IDLE_TABLE,),
    ),
    Mutant(
        name="all machines measure the same layout",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:_plan_in_time",
        before="(size in known, visits[size], size)",
        after="(size in known, size)",
        tests=(f"{IDLE}::test_machines_share_the_layouts",),
    ),
    Mutant(
        name="an overrun is not taken off what the job has earned",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:OverrunBudget.allowed",
        before="OVERRUN_SHARE * self.seconds - self.spent",
        after="OVERRUN_SHARE * self.seconds",
        tests=(OVERRUN_TABLE,),
    ),
    Mutant(
        name="a job that ends delays its last rounds to learn",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:OverrunBudget.allowed",
        before="SAVED_SHARE * self.left",
        after="math.inf",
        tests=(OVERRUN_TABLE, f"{OVERRUN}::test_overruns_never_exceed_what_the_job_has_earned"),
    ),
    Mutant(
        name="an overrun is predicted without its margin",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:Rest.overrun",
        before="SLOW * (there + back)",
        after="there + back",
        tests=(OVERRUN_TABLE,),
    ),
    Mutant(
        name="a size that another machine has shown delays a stage",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:_plan_overrun",
        before="size not in known",
        after="True",
        tests=(OVERRUN_TABLE,),
    ),
    Mutant(
        name="each machine delays stages in vain for itself",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:_plan_overrun",
        before="tried[size] < MOST_TRIES",
        after="True",
        tests=(f"{OVERRUN}::test_all_machines_together_try_a_size_in_vain_so_often",),
    ),
    Mutant(
        name="a visit outlasts the update for what another one measures in time",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:_plan_overrun",
        before="size not in visited",
        after="True",
        tests=(f"{OVERRUN}::test_no_visit_outlasts_an_update_for_what_another_measures_in_time",),
    ),
    Mutant(
        name="a few loads make a latency model that no batch changes",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:is_enough",
        before="len({one.batch for one in timings}) > 1",
        after="True",
        tests=(f"{IDLE}::test_a_latency_is_fitted_to_corners_and_to_nothing_less",),
    ),
)
