"""Mutants of rljob_runtime.local."""

from hack.mutants import Mutant

ENVIRONMENTS = "tests/unit/local/test_environments.py"

BLOCKING = "tests/unit/local/test_blocking.py"

MUTANTS = (
    Mutant(
        name="a log on a full disk prints a traceback for each line",
        target="rljob_runtime.local.run:_LogFile.handleError",
        before="self._told = True",
        after="pass",
        tests=("tests/unit/local/test_log_file.py",),
    ),
    Mutant(
        name="Ctrl-C is lost where a program runs in an event loop",
        target="rljob_runtime.local.blocking:_interrupts_to",
        before="threading.current_thread() is not threading.main_thread()",
        after="True",
        tests=(f"{BLOCKING}::test_a_signal_that_comes_while_the_work_begins_stops_it",),
    ),
    Mutant(
        name="a program that is told to exit while the work begins does not stop it",
        target="rljob_runtime.local.blocking:run_blocking",
        before="interrupt.interrupt()",
        after="pass",
        tests=(f"{BLOCKING}::test_a_signal_that_comes_while_the_work_begins_stops_it",),
    ),
    Mutant(
        name="a second interrupt of a run is the first once more",
        target="rljob_runtime.local.blocking:Interrupt._receive",
        before="self._twice.set()",
        after="pass",
        tests=(f"{BLOCKING}::test_a_second_interrupt_ends_work_that_is_stopping",),
    ),
    Mutant(
        name="a second interrupt that comes as Ray stops is the first",
        target="rljob_runtime.local.blocking:Interrupt.twice_is_early",
        before="self._wanted",
        after="False",
        tests=(f"{BLOCKING}::test_only_a_second_interrupt_ends_a_run_early_while_ray_stops",),
    ),
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
        tests=(f"{ENVIRONMENTS}::test_episodes_are_played_through_the_death_of_runners_and_gateway",),
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
        target="rljob_runtime.local.run_folder:_compared",
        before='not path.exists() or not has_history(folder / "state.db")',
        after="True",
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
        name="a local run may have other environments",
        target="rljob_runtime.local.run_folder:_refused",
        before="differences(before, job, NEVER)",
        after="differences(before, job, [path for path in NEVER if not path.startswith('environments')])",
        tests=("tests/unit/local/test_run_folder.py::test_what_makes_an_environment_another_one_is_refused",),
    ),
    Mutant(
        name="a notebook's interrupt stops nothing",
        target="rljob_runtime.local.blocking:Interrupt.interrupt",
        before="self._loop.call_soon_threadsafe(self._receive)",
        after="None",
        tests=("tests/unit/local/test_blocking.py",),
    ),
)
