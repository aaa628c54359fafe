"""Mutants of rljob_runtime.local."""

from hack.mutants import Mutant

ENVIRONMENTS = "tests/unit/local/test_environments.py"
PROCESSES = "tests/unit/local/test_processes.py"

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
        name="a process that is told what it cannot do is started again",
        target="rljob_runtime.local.processes:LocalProcess.run",
        before="status == REFUSED",
        after="False",
        tests=(f"{PROCESSES}::test_a_process_that_is_told_what_it_cannot_do_is_not_started_again",),
    ),
    Mutant(
        name="what a process started outlives it",
        target="rljob_runtime.local.processes:_end",
        before="os.killpg(process.pid, signal.SIGKILL)",
        after="process.kill()",
        tests=(f"{PROCESSES}::test_the_end_kills_a_process_that_does_not_end_and_what_it_started",),
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
