"""Mutants of rljob_runtime.simulator.core."""

from hack.mutants import Mutant

EVENT_DIGEST = "tests/unit/simulator/core/test_event_digest.py"

MUTANTS = (
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
