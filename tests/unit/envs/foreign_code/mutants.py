"""Mutants of the processes that run foreign code."""

from hack.mutants import Mutant

AGENT = "tests/unit/envs/agents/test_harness.py"
TOOLS = "tests/unit/envs/tools/test_harness.py"

MUTANTS = (
    Mutant(
        name="a tool's exception is a failure of ours",
        target="rljob_env.foreign_code.worker_main:_observe",
        before='{"error": shortened(f"{type(error).__name__}: {error}")}',
        after='{"failed": str(error)}',
        tests=(f"{TOOLS}::test_what_the_models_arguments_cause_is_an_observation",),
    ),
    Mutant(
        name="a model's arguments are not checked",
        target="rljob_env.foreign_code.worker_main:_observe",
        before="wrong is not None",
        after="False",
        tests=(f"{TOOLS}::test_what_the_models_arguments_cause_is_an_observation",),
        canary=True,
    ),
    Mutant(
        name="what a tool prints is its answer",
        target="rljob_env.foreign_code.worker_main:main",
        before="os.dup2(2, 1)",
        after="pass",
        tests=(f"{TOOLS}::test_an_answer_without_calls_ends_the_episode_and_is_scored",),
    ),
    Mutant(
        name="a process that did not answer serves the next call",
        target="rljob_env.foreign_code.workers:WorkerPool._one",
        before="if answered:\n    self._idle.append((worker, stack))\nelse:\n    await stack.aclose()",
        after="self._idle.append((worker, stack))",
        tests=(f"{TOOLS}::test_a_tool_that_hangs_is_ended_and_the_next_call_is_answered",),
    ),
    Mutant(
        name="the first line of a tool's process is the answer",
        target="rljob_env.foreign_code.workers:Worker.call",
        before='answer.get("call") != number',
        after="False",
        tests=("tests/unit/envs/foreign_code/test_workers.py::test_what_an_evaluated_text_writes_answers_no_call",),
    ),
    Mutant(
        name="an agent's children outlive it",
        target="rljob_env.foreign_code.processes:_end",
        before="_signal(process.pid, signal.SIGKILL)",
        after="pass",
        tests=(f"{AGENT}::test_what_an_agent_leaves_behind_is_ended_with_its_episode",),
    ),
    Mutant(
        name="an agent has the runner's variables",
        target="rljob_env.foreign_code.processes:bare_environment",
        before='{"PATH": path, "HOME": str(home), "TMPDIR": str(home), **language, **more}',
        after='{**os.environ, "PATH": path, "HOME": str(home), "TMPDIR": str(home), **language, **more}',
        tests=(f"{AGENT}::test_an_agent_asks_the_model_and_writes_its_reward",),
    ),
    Mutant(
        name="relative folders of modules are those of where a program begins",
        target="rljob_env.foreign_code.processes:python_path",
        before="os.pathsep.join(map(os.path.abspath, entries.split(os.pathsep)))",
        after="entries",
        tests=(
            "tests/unit/envs/agents/test_checkout.py::"
            "test_a_function_works_in_a_copy_whose_modules_hide_none_of_its_own",
        ),
    ),
    Mutant(
        name="a program has the proxy of the user",
        target="rljob_env.foreign_code.processes:bare_environment",
        before="PROXY_KEY in os.environ",
        after="True",
        tests=("tests/unit/envs/foreign_code/test_processes.py::test_programs_get_the_jobs_proxy_and_not_the_users",),
    ),
    Mutant(
        name="each of many calls starts a process",
        target="rljob_env.foreign_code.workers:WorkerPool._started_or_freed",
        before="self._idle.pop() if self._idle else await self._start()",
        after="await self._start()",
        tests=("tests/unit/envs/foreign_code/test_workers.py::test_calls_that_come_together_start_few_processes",),
    ),
    Mutant(
        name="all that an agent prints is kept",
        target="rljob_env.foreign_code.output:Output.data_received",
        before="tail[left:]",
        after="tail",
        tests=(
            "tests/unit/envs/foreign_code/test_output.py::test_begin_and_end_are_kept_with_the_number_of_bytes_between",
        ),
    ),
    Mutant(
        name="agents outlive a runner that is killed",
        target="rljob_env.foreign_code.processes:process_group",
        before="guard.begin",
        after="None",
        tests=(
            "tests/unit/envs/foreign_code/test_processes.py::test_a_program_ends_with_a_runner_that_dies_as_it_begins",
        ),
    ),
    Mutant(
        name="a guard kills a group that has another's number",
        target="rljob_env.foreign_code.guard:main",
        before="_started(group) in (None, started)",
        after="True",
        tests=(
            "tests/unit/envs/foreign_code/test_processes.py"
            "::test_the_guard_kills_the_groups_of_its_runner_and_no_other",
        ),
    ),
    Mutant(
        name="an agent whose start is cancelled leaves its session",
        target="rljob_env.foreign_code.processes:process_group",
        before="asyncio.shield(starting)",
        after="starting",
        tests=("tests/unit/envs/foreign_code/test_processes.py",),
    ),
    Mutant(
        name="a guard remembers a group that is gone",
        target="rljob_env.foreign_code.guard:main",
        before="_exists(one)",
        after="True",
        tests=(
            "tests/unit/envs/foreign_code/test_processes.py"
            "::test_the_guard_kills_the_groups_of_its_runner_and_no_other",
        ),
    ),
    Mutant(
        name="a program ends because the guard has died",
        target="rljob_env.foreign_code.guard:Guard.begin",
        before="signal.signal(signal.SIGPIPE, signal.SIG_IGN)",
        after="pass",
        tests=("tests/unit/envs/foreign_code/test_processes.py::test_a_program_runs_although_the_guard_has_died",),
    ),
    Mutant(
        name="a runner removes what another one uses",
        target="rljob_env.foreign_code.scratch:_remove_if_free",
        before="fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        after="pass",
        tests=(
            "tests/unit/envs/foreign_code/test_scratch.py::test_what_a_killed_runner_left_is_removed_by_the_next_one",
        ),
    ),
    Mutant(
        name="what a killed runner left stays",
        target="rljob_env.foreign_code.scratch:_remove_if_free",
        before="_remove(lock.with_suffix(FOLDER))",
        after="pass",
        tests=(
            "tests/unit/envs/foreign_code/test_scratch.py::test_what_a_killed_runner_left_is_removed_by_the_next_one",
        ),
    ),
    Mutant(
        name="the reward of an agent is called elsewhere",
        target="rljob_env.foreign_code.worker_main:_placed",
        before="home or own_home",
        after="own_home",
        tests=("tests/unit/envs/agents/test_harness.py::test_a_reward_function_reads_what_the_agent_left_in_its_home",),
    ),
)
