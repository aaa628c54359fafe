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
    Mutant(
        name="an edit of a local run is checked by its identity only",
        target="rljob_runtime.local.run_folder:_refused",
        before="differences(before, job, NEVER)",
        after="differences(before, job, ('mode',))",
        tests=("tests/unit/local/test_run_folder.py",),
    ),
    Mutant(
        name="a notebook's interrupt stops nothing",
        target="rljob_runtime.local.blocking:Interrupt.interrupt",
        before="self._loop.call_soon_threadsafe(self._stop)",
        after="None",
        tests=("tests/unit/local/test_blocking.py",),
    ),
)
