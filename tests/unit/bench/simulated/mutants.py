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
)
