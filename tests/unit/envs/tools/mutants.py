"""Mutants of rljob_env.tools."""

from hack.mutants import Mutant

MCP = "tests/unit/envs/tools/test_mcp_client.py"
TOOLS = "tests/unit/envs/tools/test_harness.py"

MUTANTS = (
    Mutant(
        name="the next runner executes calls whose answers are stored",
        target="rljob_env.tools.calls:Calls.observation",
        before='self._known.get(call["id"])',
        after="None",
        tests=("tests/unit/envs/tools/test_calls.py::test_another_runner_executes_what_is_not_stored",),
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
)
