"""Mutants of simulator.peers.engines."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="a simulated replica starts an engine of a size that it refuses",
        target="rljob_runtime.simulator.peers.engines.refused_layouts:RefusedLayouts.__getitem__",
        before="size != self._first and self._refuses()",
        after="False",
        tests=(
            "tests/simulation/test_policy_switches.py::test_a_refused_size_is_never_reached_and_breaks_no_invariant",
        ),
    ),
)
