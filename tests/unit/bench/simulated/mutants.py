"""Mutants of the simulated benchmarks."""

from hack.mutants import Mutant

PAT_ACCOUNTS = "tests/unit/bench/simulated/test_pat_accounts.py"

MUTANTS = (
    Mutant(
        name="a job of the benchmark never learns what a switch takes",
        target="rljob_bench.simulated.pat_accounts:_measure",
        before="assumed.record(*pair, part, 1.0, truth.unit(*pair, part) * noise)",
        after="pass",
        tests=(f"{PAT_ACCOUNTS}::test_a_job_learns_its_rates",),
    ),
    Mutant(
        name="every state that a switch chooses is the cheaper one",
        target="rljob_bench.simulated.pat_accounts:choices",
        before="Choice(number, seconds[state], min(seconds.values()))",
        after="Choice(number, min(seconds.values()), min(seconds.values()))",
        tests=(f"{PAT_ACCOUNTS}::test_a_job_learns_its_rates",),
    ),
    Mutant(
        name="a size that runs in the benchmark is never observed",
        target="rljob_bench.simulated.pat:Play._observing",
        before="self.engines[size] if size in ran else one",
        after="one",
        tests=(
            "tests/unit/bench/simulated/test_pat.py::test_a_size_that_is_believed_to_be_fast_is_left_when_it_has_run",
        ),
    ),
)
