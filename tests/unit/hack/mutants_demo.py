"""Mutants of the demo."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="the demo's node is lost before episodes begin",
        target="hack.demo_faults:Begins.look",
        before="leased > before",
        after="leased >= before",
        canary=True,
        tests=("tests/unit/hack/test_demo_faults.py::test_episodes_begin_when_runners_have_received_more_of_them",),
    ),
)
