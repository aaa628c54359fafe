"""Mutants of the harness of agents."""

from hack.mutants import Mutant

AGENT = "tests/unit/envs/agents/test_harness.py"
CHECKOUT = "tests/unit/envs/agents/test_checkout.py"
SCRATCH = "tests/unit/envs/foreign_code/test_scratch.py"

MUTANTS = (
    Mutant(
        name="all agents work in one checkout",
        target="rljob_env.agents.harness:AgentHarness._folder",
        before="self._copies is None",
        after="True",
        tests=(f"{CHECKOUT}::test_concurrent_and_later_episodes_see_no_edit_of_another",),
    ),
    Mutant(
        name="a working copy begins at the top of its checkout",
        target="rljob_env.agents.checkout:WorkingCopies.make",
        before="return folder / checkout.inside",
        after="return folder",
        tests=(f"{CHECKOUT}::test_a_copy_has_the_commit_of_the_runners_start_and_is_removed",),
    ),
    Mutant(
        name="a working copy is not whole, and the agent runs",
        target="rljob_env.agents.checkout:WorkingCopies._git",
        before="code = await process.wait()",
        after="code = await process.wait() and 0",
        tests=(f"{CHECKOUT}::test_a_copy_that_cannot_be_made_is_a_failure_of_ours",),
    ),
    Mutant(
        name="the reward of an agent sees its prompt only",
        target="rljob_env.agents.harness:AgentHarness._scored",
        before="await conversation_to_score(self._gateway_http, assignment, answer)",
        after="(assignment.messages, answer)",
        tests=(f"{AGENT}::test_a_reward_function_has_the_whole_conversation_of_an_agent",),
    ),
    Mutant(
        name="an agent without a home fails its episode",
        target="rljob_env.agents.harness:AgentHarness._scored",
        before="await asyncio.to_thread(make_enterable, place)",
        after="pass",
        tests=(f"{AGENT}::test_an_agent_that_removes_its_home_is_scored_all_the_same",),
    ),
    Mutant(
        name="an agent that crashed has no reward",
        target="rljob_env.agents.harness:_result_of",
        before="return _parsed(text, detail)",
        after='return _parsed(text if code == 0 else b"null", detail)',
        tests=(f"{AGENT}::test_the_end_of_an_agent_is_its_own_doing",),
    ),
    Mutant(
        name="a result that is none is no reward",
        target="rljob_env.agents.harness:_result_of",
        before="if code is None:\n    return _Ended(None, {}, None, detail)",
        after="return _Ended(None, {}, None, detail)",
        tests=(f"{AGENT}::test_a_result_that_is_none_is_a_failure_of_ours",),
    ),
    Mutant(
        name="an agent that failed has a result",
        target="rljob_env.agents.harness:AgentHarness.run",
        before="ended.reward is None and ended.answer is None and code != 0",
        after="False",
        tests=(f"{AGENT}::test_an_agents_failure_while_the_gateway_is_away_is_ours",),
        canary=True,
    ),
    Mutant(
        name="the folder of an agent is deleted in the event loop",
        target="rljob_env.agents.harness:_scratch_folder",
        before="await asyncio.shield(asyncio.to_thread(folder.cleanup))",
        after="folder.cleanup()",
        tests=(f"{AGENT}::test_the_folder_of_an_agent_is_deleted_by_a_thread",),
    ),
    Mutant(
        name="an agent's pipe is read as its result",
        target="rljob_env.agents.harness:_result_of",
        before="not stat.S_ISREG(os.fstat(file.fileno()).st_mode)",
        after="False",
        tests=(f"{AGENT}::test_what_is_no_file_is_no_result_and_stops_no_runner",),
    ),
    Mutant(
        name="an agent that its deadline killed ended by itself",
        target="rljob_env.agents.harness:AgentHarness.run",
        before="Limit.SECONDS if code is None else None",
        after="None",
        tests=(f"{AGENT}::test_an_agent_that_hangs_ends_at_its_deadline_with_all_that_it_started",),
    ),
    Mutant(
        name="a result file that is nested very deep is no failure",
        target="rljob_env.agents.harness:_result_of",
        before="(ValueError, RecursionError)",
        after="ValueError",
        tests=("tests/unit/envs/test_fuzz.py::test_a_result_file_is_a_result_or_a_failure",),
    ),
)
