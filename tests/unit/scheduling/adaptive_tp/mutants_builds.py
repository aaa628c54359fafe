"""Mutants of what a build of engines costs."""

from hack.mutants import Mutant

COSTS = "tests/unit/scheduling/adaptive_tp/test_switch_costs.py"

MUTANTS = (
    Mutant(
        name="a build costs nothing",
        target="rljob_runtime.scheduling.adaptive_tp.switch_costs:SwitchCosts._with_build",
        before="builds.needed(pair[1])",
        after="False",
        tests=(f"{COSTS}::test_engines_that_are_not_built_cost_a_share_of_their_build",),
    ),
    Mutant(
        name="a build is paid by one round",
        target="rljob_runtime.scheduling.adaptive_tp.snapshot:Builds.share",
        before="1 / min(max(1, self.rounds), PAYING_ROUNDS)",
        after="1.0",
        tests=(f"{COSTS}::test_engines_that_are_not_built_cost_a_share_of_their_build",),
    ),
    Mutant(
        name="later rounds pay for engines that are discarded",
        target="rljob_runtime.scheduling.adaptive_tp.snapshot:Builds.share",
        before="size in self.discarded",
        after="False",
        tests=(f"{COSTS}::test_engines_that_are_not_built_cost_a_share_of_their_build",),
    ),
    Mutant(
        name="later rounds pay for builds without end",
        target="rljob_runtime.scheduling.adaptive_tp.snapshot:Builds.share",
        before="min(max(1, self.rounds), PAYING_ROUNDS)",
        after="max(1, self.rounds)",
        tests=(f"{COSTS}::test_engines_that_are_not_built_cost_a_share_of_their_build",),
    ),
)
