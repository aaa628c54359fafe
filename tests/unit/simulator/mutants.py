"""Mutants of rljob_runtime.simulator."""

from hack.mutants import Mutant

POLICY_SWITCHES = "tests/simulation/test_policy_switches.py"

MUTANTS = (
    Mutant(
        name="the product's own switch policy is never simulated",
        target="rljob_runtime.simulator.run:_Run.__init__",
        before="RandomSwitches(scenario.seed) if scenario.switches else None",
        after="RandomSwitches(scenario.seed)",
        tests=(f"{POLICY_SWITCHES}::test_the_policy_decides_in_a_fair_share_of_the_jobs_to_switch",),
    ),
    Mutant(
        name="a wider size of a drawn job is no faster",
        target="rljob_runtime.simulator.drawn_scenario:_with_faster_sizes",
        before="(site.tensor_parallel / size) ** exponent",
        after="1.0",
        tests=(f"{POLICY_SWITCHES}::test_the_policy_decides_in_a_fair_share_of_the_jobs_to_switch",),
    ),
)
