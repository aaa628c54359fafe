"""Mutants of rljob_runtime.local."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="a second run goes on with other data",
        target="rljob_runtime.local.run_folder:_accept",
        before='path.exists() and has_history(folder / "state.db")',
        after="False",
        tests=("tests/unit/local/test_run_folder.py",),
        canary=True,
    ),
)
