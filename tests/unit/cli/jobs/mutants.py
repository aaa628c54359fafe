"""Mutants of rljob_runtime.cli.jobs."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="the log of an older pod is read",
        target="rljob_runtime.cli.jobs.tables:newest_pods",
        before="_incarnation(pod) > _incarnation(newest[key])",
        after="_incarnation(pod) < _incarnation(newest[key])",
        tests=("tests/unit/cli/jobs/test_tables.py",),
    ),
)
