"""Mutants of rljob_runtime.simulator.core."""

from hack.mutants import Mutant

EVENT_DIGEST = "tests/unit/simulator/core/test_event_digest.py"

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
    Mutant(
        name="a digest does not cover when an event happens",
        target="rljob_runtime.simulator.core.event_digest:EventDigest.add",
        before='f"{seconds!r} {tag} {values!r}\\n"',
        after='f"{tag} {values!r}\\n"',
        tests=(f"{EVENT_DIGEST}::test_another_time_or_order_gives_another_digest",),
    ),
    Mutant(
        name="a digest covers names of classes",
        target="rljob_runtime.simulator.core.event_digest:EventDigest._plain",
        before="kind in _PLAIN",
        after="isinstance(value, object)",
        tests=(f"{EVENT_DIGEST}::test_other_names_of_classes_and_fields_give_the_same_digest",),
    ),
    Mutant(
        name="a message of a killed coordinator is delivered",
        target="rljob_runtime.simulator.core.network:SimulatedWire.call",
        before="not self._life.alive",
        after="False",
        tests=("tests/simulation/test_runs.py::test_a_killed_coordinator_runs_no_exit_code",),
    ),
)
