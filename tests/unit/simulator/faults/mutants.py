"""Mutants of rljob_runtime.simulator.faults."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="a simulated fault never ends",
        target="rljob_runtime.simulator.faults.injector:Injector._begin",
        before="fault.duration",
        after="1e6",
        tests=("tests/simulation/test_runs.py::test_each_fault_begins_and_ends_and_the_job_goes_on",),
    ),
)
