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
    Mutant(
        name="seeds have no engine that refuses a layout",
        target="rljob_runtime.simulator.faults.plan:draw_plan",
        before="refusals.random() < REFUSAL_SHARE",
        after="False",
        tests=(
            "tests/unit/simulator/faults/test_plan.py::test_layouts_are_refused_in_half_of_the_jobs_that_have_several",
        ),
    ),
)
