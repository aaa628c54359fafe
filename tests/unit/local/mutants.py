"""Mutants of rljob_runtime.local."""

from hack.mutants import Mutant

ENVIRONMENTS = "tests/unit/local/test_environments.py"

MUTANTS = (
    Mutant(
        name="a process of the environments dies unseen",
        target="rljob_runtime.local.environments:LocalEnvironments.observe",
        before="not self.restarts",
        after="True",
        tests=(f"{ENVIRONMENTS}::test_episodes_are_played_through_the_death_of_runners_and_gateway",),
    ),
    Mutant(
        name="runners have the runtime's Python, whatever is asked for",
        target="rljob_runtime.local.environments:LocalEnvironments._runner_command",
        before="RUNNER_PYTHON in os.environ",
        after="False",
        tests=(f"{ENVIRONMENTS}::test_runners_may_have_a_python_of_their_own",),
    ),
    Mutant(
        name="runners outlive the run",
        target="rljob_runtime.local.environments:LocalEnvironments._end",
        before="tasks[1:], tasks[:1]",
        after="tasks[:1], ()",
        tests=(f"{ENVIRONMENTS}::test_episodes_are_played_through_the_death_of_runners_and_gateway",),
    ),
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
