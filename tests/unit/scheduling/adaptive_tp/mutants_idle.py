"""Mutants of rljob_runtime.scheduling.adaptive_tp.idle_profile."""

from hack.mutants import Mutant

IDLE = "tests/unit/scheduling/adaptive_tp/test_idle_profile.py"
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
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:plan_profiles",
        before="(size in known, visits[size], size)",
        after="(visits[size], size)",
        tests=(IDLE_TABLE,),
    ),
    Mutant(
        name="all machines measure the same layout",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:plan_profiles",
        before="(size in known, visits[size], size)",
        after="(size in known, size)",
        tests=(f"{IDLE}::test_machines_share_the_layouts",),
    ),
    Mutant(
        name="a few loads make a law that no batch changes",
        target="rljob_runtime.scheduling.adaptive_tp.idle_profile:is_enough",
        before="len({one.batch for one in timings}) > 1",
        after="True",
        tests=(f"{IDLE}::test_a_law_is_fitted_to_corners_and_to_nothing_less",),
    ),
)
