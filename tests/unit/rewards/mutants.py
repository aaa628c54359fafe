"""Mutants of rljob_runtime.rewards."""

from hack.mutants import Mutant

CODE_SCORER = "tests/unit/rewards/test_code_scorer.py"
CONFINED_WORKERS = "tests/unit/rewards/test_confined_workers.py"
FUNCTION_SCORER = "tests/unit/rewards/test_function_scorer.py"
JUDGE_SCORER = "tests/unit/rewards/test_judge_scorer.py"
REMOTE = "tests/unit/rewards/test_remote.py"

MUTANTS = (
    Mutant(
        name="an environment that gives no reward gives 0",
        target="rljob_runtime.rewards.environment_terms:environment_terms",
        before="given is None",
        after="False",
        tests=("tests/unit/rewards/test_environment_terms.py",),
    ),
    Mutant(
        name="the weight of an environment's reward is 1",
        target="rljob_runtime.rewards.environment_terms:environment_terms",
        before="total += rule.weight * given",
        after="total += given",
        tests=("tests/unit/rewards/test_environment_terms.py",),
    ),
    Mutant(
        name="a box that is cut off answers",
        target="rljob_runtime.rewards.answers.final:_last_box",
        before='depth += {"{": 1, "}": -1}.get(match[0], 0)',
        after='depth = {"{": 1, "}": -1}.get(match[0], 0)',
        tests=("tests/unit/rewards/test_answers.py::test_answers",),
    ),
    Mutant(
        name="a block that never ends is a program",
        target="rljob_runtime.rewards.code_scorer:extract_program",
        before="return program",
        after="return program if begin < 0 else response[begin:]",
        tests=(f"{CODE_SCORER}::test_one_pass_finds_what_the_pattern_finds",),
    ),
    Mutant(
        name="a shadow run delays its round",
        target="rljob_runtime.rewards.code_scorer:CodeScorer._passes",
        before="task.add_done_callback(self._shadow_ended)",
        after="await task",
        tests=(f"{CODE_SCORER}::test_a_shadow_run_delays_no_reward_and_is_counted_at_its_end",),
    ),
    Mutant(
        name="a sandbox that fails is worth zero",
        target="rljob_runtime.rewards.code_scorer:CodeScorer._passes",
        before="raise ScoreFailed(Failure.SANDBOX_FAILED, self._rule.name, str(error)) from error",
        after="return False",
        tests=(f"{CODE_SCORER}::test_a_failure_of_ours_is_no_zero",),
        canary=True,
    ),
    Mutant(
        name="a shadow run goes before calls that wait",
        target="rljob_runtime.rewards.code_scorer:CodeScorer._idle_turn",
        before="self._waiting",
        after="self._waiting < 0",
        tests=(f"{CODE_SCORER}::test_a_shadow_run_begins_when_no_call_waits",),
    ),
    Mutant(
        name="a printed number that no float holds is an error",
        target="rljob_runtime.rewards.code_test_cases:_close",
        before="OverflowError",
        after="ZeroDivisionError",
        tests=("tests/unit/rewards/test_fuzz.py::test_what_a_program_prints_is_right_or_wrong",),
    ),
    Mutant(
        name="a close integer will do",
        target="rljob_runtime.rewards.code_test_cases:_same_value",
        before="isinstance(expected, float)",
        after="isinstance(expected, float) or isinstance(got, float)",
        tests=(CODE_SCORER,),
    ),
    Mutant(
        name="a value in a list is wanted as it stands",
        target="rljob_runtime.rewards.code_test_cases:Call.passes",
        before="(self.returns, self.returns[0]) if self.wrapped else (self.returns,)",
        after="(self.returns,)",
        tests=(f"{CODE_SCORER}::test_a_column_may_have_what_is_returned_in_a_list",),
    ),
    Mutant(
        name="an evaluation holds the pipes of its worker",
        target="rljob_runtime.rewards.evaluation:_run_child",
        before="os.closerange(3, writing)",
        after="pass",
        tests=(f"{CONFINED_WORKERS}::test_a_text_changes_the_value_of_no_other",),
    ),
    Mutant(
        name="a worker of ours has the coordinator's environment",
        target="rljob_runtime.rewards.function_scorer:_environment",
        before='{**kept, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}',
        after='{**os.environ, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}',
        tests=(f"{CONFINED_WORKERS}::test_a_text_that_is_evaluated_can_do_nothing",),
    ),
    Mutant(
        name="a busy machine makes a rule late",
        target="rljob_runtime.rewards.function_scorer:_Worker._ask",
        before="seconds - (clock() - began) + self._waited_for_call(waited)",
        after="seconds - (clock() - began)",
        tests=(f"{FUNCTION_SCORER}::test_a_busy_machine_makes_no_rule_late",),
    ),
    Mutant(
        name="a worker without memory is worth zero",
        target="rljob_runtime.rewards.function_scorer:_Worker.score",
        before='answer.get("memory", 0.0) > FULL',
        after="False",
        tests=(f"{CONFINED_WORKERS}::test_a_lack_of_memory_is_no_zero",),
    ),
    Mutant(
        name="a value beyond its range is taken",
        target="rljob_runtime.rewards.function_scorer:_Worker.score",
        before="not rule.least <= value <= rule.most",
        after="False",
        tests=(f"{FUNCTION_SCORER}::test_a_value_of_the_range_is_taken_whatever_the_weight",),
    ),
    Mutant(
        name="a line that a text wrote is the answer to its call",
        target="rljob_runtime.rewards.function_scorer:_Worker.score",
        before='answer.get("call") != call',
        after="False",
        tests=(f"{FUNCTION_SCORER}::test_what_an_evaluated_text_writes_is_the_answer_of_no_call",),
    ),
    Mutant(
        name="a worker's line is believed to be an object",
        target="rljob_runtime.rewards.function_scorer:_Worker._line",
        before="not isinstance(found, dict)",
        after="False",
        tests=(f"{FUNCTION_SCORER}::test_what_an_evaluated_text_writes_is_the_answer_of_no_call",),
    ),
    Mutant(
        name="a worker of ours keeps the coordinator's rights",
        target="rljob_runtime.rewards.function_worker:_prepared",
        before="confined(rules)",
        after="not rules",
        tests=(f"{CONFINED_WORKERS}::test_a_text_that_is_evaluated_can_do_nothing",),
    ),
    Mutant(
        name="a text is evaluated where later ones will be",
        target="rljob_runtime.rewards.function_worker:IsolatedEvaluator.__call__",
        before="evaluate(work, self._readable, self._requests, self._began)",
        after='{"value": work()}',
        tests=(f"{CONFINED_WORKERS}::test_a_text_changes_the_value_of_no_other",),
    ),
    Mutant(
        name="a judge's words are cut before the key is taken out",
        target="rljob_runtime.rewards.judge_scorer:JudgeScorer._shown",
        before='(text.replace(self._key, "***") if self._key else text)[:SHOWN]',
        after='text[:SHOWN].replace(self._key, "***") if self._key else text[:SHOWN]',
        tests=(f"{JUDGE_SCORER}::test_no_part_of_the_key_is_shown_wherever_it_is_repeated",),
    ),
    Mutant(
        name="a parser's message about what a judge sent is shown",
        target="rljob_runtime.rewards.judge_scorer:JudgeScorer._ask",
        before="isinstance(error, OSError | aiohttp.InvalidURL)",
        after="True",
        tests=(f"{JUDGE_SCORER}::test_no_part_of_the_key_is_shown_wherever_it_is_repeated",),
    ),
    Mutant(
        name="programs run in the coordinator's container",
        target="rljob_runtime.rewards.pool:_code",
        before="Sandbox(processes) if reward_server is None else RemoteSandbox(reward_server, processes)",
        after="Sandbox(processes)",
        tests=(f"{REMOTE}::test_functions_and_programs_run_there_and_not_here",),
    ),
    Mutant(
        name="a program outlives the call that was cancelled",
        target="rljob_runtime.rewards.remote_server:_answer",
        before="asyncio.wait({work, following}, return_when=asyncio.FIRST_COMPLETED)",
        after="asyncio.wait({work})",
        tests=(f"{REMOTE}::test_a_cancelled_call_ends_its_program",),
    ),
    Mutant(
        name="a function for TRL gets the bare response where the prompt is a conversation",
        target="rljob_runtime.rewards.signatures:_of_trl",
        before="not isinstance(prompt.text_or_messages, str)",
        after="False",
        tests=("tests/unit/rewards/test_signatures.py",),
    ),
    Mutant(
        name="a function for verl gets no extra_info",
        target="rljob_runtime.rewards.signatures:_of_verl",
        before="prompt.metadata.get('extra_info')",
        after="None",
        tests=("tests/unit/rewards/test_signatures.py",),
    ),
)
