"""Mutants of rljob_env.tools."""

from hack.mutants import Mutant

MCP = "tests/unit/envs/tools/test_mcp_client.py"
CONCURRENT = "tests/unit/envs/tools/test_concurrent_calls.py"
LIMITS = "tests/unit/envs/tools/test_call_limits.py"
TOOLS = "tests/unit/envs/tools/test_harness.py"

MUTANTS = (
    Mutant(
        name="the next runner executes calls whose answers are stored",
        target="rljob_env.tools.calls:Calls._observation",
        before='self._known.get(call["id"])',
        after="None",
        tests=(
            f"{CONCURRENT}::test_no_stored_call_is_executed_twice_after_a_loss",
            "tests/unit/envs/tools/test_calls.py::test_another_runner_executes_what_is_not_stored",
        ),
    ),
    Mutant(
        name="a tool without its server answers the model",
        target="rljob_env.tools.toolbox:FunctionTools.call",
        before="Failed(Part.TOOL_SERVER, str(error))",
        after="ToolError(str(error))",
        tests=(f"{TOOLS}::test_a_tool_that_breaks_by_itself_is_a_failure_of_ours",),
    ),
    Mutant(
        name="an episode has no most turns",
        target="rljob_env.tools.harness:ToolsHarness._converse",
        before="range(len(answers), self._config.max_turns)",
        after="range(10)",
        tests=(f"{TOOLS}::test_the_most_turns_end_an_episode",),
    ),
    Mutant(
        name="a gateway that is away is the policy's time-out",
        target="rljob_env.tools.harness:ToolsHarness.run",
        before="model.away",
        after="False",
        tests=(f"{TOOLS}::test_a_deadline_while_the_gateway_is_away_is_a_failure_of_ours",),
    ),
    Mutant(
        name="a call that broke off is sent again",
        target="rljob_env.tools.mcp_client:McpClient._request",
        before="not (not_sent or repeatable)",
        after="False",
        tests=(f"{MCP}::test_a_call_that_broke_off_is_not_executed_twice",),
        canary=True,
    ),
    Mutant(
        name="a call that was not accepted is given up",
        target="rljob_env.tools.mcp_client:McpClient._request",
        before="response.status_code not in NOT_ACCEPTED",
        after="True",
        tests=(f"{MCP}::test_a_call_that_a_server_did_not_accept_is_sent_again",),
    ),
    Mutant(
        name="an answer to another request counts",
        target="rljob_env.tools.json_rpc:result_of",
        before='message.get("id") == id',
        after="True",
        tests=(f"{MCP}::test_a_server_that_lies_or_breaks_off_is_a_failure_of_ours",),
    ),
    Mutant(
        name="a slow server is not asked whether it lives",
        target="rljob_env.tools.mcp_client:McpClient.call",
        before="await self._ping()",
        after="pass",
        tests=(f"{MCP}::test_a_server_that_answers_no_ping_either_is_a_failure_of_ours",),
    ),
    Mutant(
        name="a session is not ended",
        target="rljob_env.tools.mcp_client:McpClient.close",
        before="SESSION in self._headers",
        after="False",
        tests=(f"{MCP}::test_a_call_is_answered_as_json_or_in_a_stream",),
    ),
    Mutant(
        name="a harness that has had all of its turns ended by itself",
        target="rljob_env.tools.harness:ToolsHarness._converse",
        before="return Limit.TURNS",
        after="return None",
        tests=(f"{TOOLS}::test_the_most_turns_end_an_episode",),
    ),
    Mutant(
        name="a harness whose time was over ended by itself",
        target="rljob_env.tools.harness:ToolsHarness.run",
        before="limit = Limit.SECONDS",
        after="pass",
        tests=(f"{TOOLS}::test_the_deadline_ends_an_episode_and_is_no_failure",),
    ),
    Mutant(
        name="calls of a turn wait for one another",
        target="rljob_env.tools.calls:Calls.observations",
        before="not self._stateless",
        after="True",
        tests=(f"{CONCURRENT}::test_calls_without_a_state_run_concurrently_up_to_a_bound",),
    ),
    Mutant(
        name="calls that depend on one another run concurrently",
        target="rljob_env.tools.calls:Calls.observations",
        before="not self._stateless",
        after="False",
        tests=(f"{CONCURRENT}::test_calls_with_a_state_run_one_after_another",),
    ),
    Mutant(
        name="any number of calls runs at a time",
        target="rljob_env.tools.calls:Calls.__init__",
        before="asyncio.Semaphore(CONCURRENT_CALLS)",
        after="asyncio.Semaphore(256)",
        tests=(f"{CONCURRENT}::test_calls_without_a_state_run_concurrently_up_to_a_bound",),
    ),
    Mutant(
        name="the seconds of a lost runner's calls are lost",
        target="rljob_env.tools.calls:Calls.go_on",
        before="call.seconds or 0.0",
        after="0.0",
        tests=(f"{CONCURRENT}::test_the_seconds_of_another_runners_calls_count",),
    ),
    Mutant(
        name="calls begin after one has ended the attempt",
        target="rljob_env.tools.calls:Calls._observation",
        before="""
await self._places.acquire()
seen = await self._execute(call)
self._places.release()
return seen
""",
        after="""
async with self._places:
    return await self._execute(call)
""",
        tests=(f"{CONCURRENT}::test_a_call_that_fails_ends_the_others",),
    ),
    Mutant(
        name="a server's word stands in a header, whatever it is",
        target="rljob_env.tools.mcp_client:_is_header",
        before="value.isascii()",
        after="True",
        tests=("tests/unit/envs/test_fuzz.py::test_an_answer_of_an_mcp_server_is_a_text_or_a_failure",),
    ),
    Mutant(
        name="a call that waits for others at a server has its own time alone",
        target="rljob_env.tools.call_limits:CallLimits.call",
        before="not limit.expired()",
        after="False",
        tests=(f"{LIMITS}::test_an_answer_renews_the_time_of_the_other_calls",),
    ),
    Mutant(
        name="answers to other calls keep a call open for ever",
        target="rljob_env.tools.call_limits:CallLimits._renew",
        before="min(until, latest)",
        after="until",
        tests=(f"{LIMITS}::test_an_answer_renews_the_time_of_the_other_calls",),
    ),
    Mutant(
        name="a call that is not answered renews the time of others",
        target="rljob_env.tools.call_limits:CallLimits.call",
        before="not limit.expired()",
        after="True",
        tests=(f"{LIMITS}::test_a_call_that_ends_without_an_answer_renews_nothing",),
    ),
    Mutant(
        name="a ping does not wait for the calls before it",
        target="rljob_env.tools.mcp_client:McpClient._ping",
        before="PING_SECONDS * self._limits.times",
        after="PING_SECONDS",
        tests=(f"{LIMITS}::test_a_ping_waits_for_the_calls_before_it",),
    ),
    Mutant(
        name="concurrent calls of an episode have the time of one",
        target="rljob_env.tools.harness:ToolsHarness._open",
        before="self._limits[url] if concurrently else None",
        after="None",
        tests=(f"{LIMITS}::test_an_episode_without_a_state_has_concurrent_calls_at_a_server",),
    ),
    Mutant(
        name="each concurrent call of a function has a process",
        target="rljob_env.tools.harness:ToolsHarness.__init__",
        before="asyncio.Semaphore(config.episodes)",
        after="asyncio.Semaphore(256)",
        tests=(f"{LIMITS}::test_a_runner_has_as_many_processes_of_functions_as_episodes",),
    ),
    Mutant(
        name="a report on its way at the deadline is an outage",
        target="rljob_env.tools.calls:Calls.waiting",
        before="time.monotonic() - sent > LATE_SECONDS",
        after="True",
        tests=(f"{CONCURRENT}::test_a_report_on_its_way_at_the_deadline_is_no_outage",),
    ),
)
