"""Mutants of rljob_runtime.rollout.profiling."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="what a replica takes between two steps is not profiled",
        target="rljob_runtime.rollout.profiling.timed_engine:decode_timing",
        before="steps[place + 1].began - steps[place].began",
        after="steps[place].ended - steps[place].began",
        tests=("tests/unit/rollout/profiling/test_profiler.py::test_the_coefficients_of_an_engine_are_found",),
    ),
)
