"""Mutants of rljob_runtime.gateway."""

from hack.mutants import Mutant

CAPABILITY = "tests/unit/gateway/test_capability.py"
GATEWAY = "tests/unit/gateway/test_gateway.py"
ENVIRONMENTS = "tests/unit/gateway/test_environment_routes.py"
KNOWN = "tests/unit/gateway/test_known_templates.py"
OPENAI = "tests/unit/gateway/test_openai_client.py"
REQUESTS = "tests/unit/gateway/test_requests.py"
TEXT = "tests/unit/gateway/test_text.py"
TOOL_CALLS = "tests/unit/gateway/test_tool_calls.py"

MUTANTS = (
    Mutant(
        name="a capability opens every episode",
        target="rljob_runtime.gateway.capability:verify",
        before="episode is not None and episode != name",
        after="False",
        tests=(f"{CAPABILITY}::test_a_capability_opens_its_own_episode_only",),
        canary=True,
    ),
    Mutant(
        name="a capability opens its episode at its expiry",
        target="rljob_runtime.gateway.capability:verify",
        before="now >= capability.expires",
        after="now > capability.expires",
        tests=(f"{CAPABILITY}::test_a_capability_is_what_was_minted",),
    ),
    Mutant(
        name="a key of any length is taken",
        target="rljob_runtime.gateway.config:read_key",
        before="len(key) < LEAST_KEY_BYTES",
        after="not key",
        tests=("tests/unit/entrypoints/test_gateway.py::test_a_key_that_is_none_is_refused_and_not_shown",),
    ),
    Mutant(
        name="a call without an end is a call",
        target="rljob_runtime.gateway.text.tool_calls:parse_tool_calls",
        before="break",
        after="end = len(text)",
        tests=(f"{TOOL_CALLS}::test_calls_of_a_text",),
    ),
    Mutant(
        name="a template that strips earlier turns is append-only",
        target="rljob_runtime.gateway.text.append_only:_check",
        before="not after.startswith(written)",
        after="not after.startswith(before[:1])",
        tests=(f"{TEXT}::test_a_template_that_changes_earlier_turns_is_refused",),
    ),
    Mutant(
        name="words of a tool end its turn",
        target="rljob_runtime.gateway.text.suffix_text:SuffixText._text",
        before="self._plain.guarded(self._shown(message))",
        after="self._shown(message)",
        tests=(f"{TEXT}::test_words_of_a_message_become_no_token_of_the_template",),
    ),
    Mutant(
        name="the end of a turn stands twice",
        target="rljob_runtime.gateway.text.suffix_text:SuffixText.following",
        before="del tail[0]",
        after="pass",
        tests=(f"{TEXT}::test_a_turn_goes_on_as_the_template_writes_it_with_the_tokens_that_were_sampled",),
    ),
    Mutant(
        name="a mark is set once in overlapping words",
        target="rljob_runtime.gateway.text.plain_text:PlainText._marked",
        before="place = found.start() + 1",
        after="place = found.start() + 1\nself._added = None",
        tests=(f"{TEXT}::test_any_text_is_encoded_without_an_added_token_and_decodes_to_itself",),
    ),
    Mutant(
        name="a known conversation is rendered afresh",
        target="rljob_runtime.gateway.paths:Paths.deepest",
        before="range(len(chain) - 1, 0, -1)",
        after="range(0)",
        tests=(f"{GATEWAY}::test_turns_go_on_from_the_tokens_that_were_sampled",),
    ),
    Mutant(
        name="a client raises the bound of a turn",
        target="rljob_runtime.gateway.gateway:Gateway._bounds",
        before="min(room, self._settings.max_tokens, max_tokens or room)",
        after="min(room, max_tokens or self._settings.max_tokens)",
        tests=(f"{GATEWAY}::test_a_client_may_only_end_a_turn_earlier",),
    ),
    Mutant(
        name="a lost answer generates its turn twice",
        target="rljob_runtime.gateway.gateway:Gateway._turn.ask",
        before="replace(call, retry=True)",
        after="call",
        tests=(f"{GATEWAY}::test_a_coordinator_that_is_away_is_asked_again_and_generates_once",),
    ),
    Mutant(
        name="the turn of a client that left is lost",
        target="rljob_runtime.gateway.gateway:Gateway._to_the_end",
        before="asyncio.shield(task)",
        after="task",
        tests=(f"{GATEWAY}::test_a_turn_is_stored_although_its_client_left_and_a_retry_receives_it",),
    ),
    Mutant(
        name="tokens that were encoded again are not counted",
        target="rljob_runtime.gateway.gateway:_changed",
        before="a != b",
        after="False",
        tests=(f"{GATEWAY}::test_a_text_that_changes_sampled_tokens_is_counted_and_not_followed",),
    ),
    Mutant(
        name="rendering blocks the event loop",
        target="rljob_runtime.gateway.gateway:Gateway._in_thread",
        before="await asyncio.get_running_loop().run_in_executor(self._executor, work)",
        after="work()",
        tests=(f"{GATEWAY}::test_other_requests_go_on_while_a_long_one_is_rendered",),
    ),
    Mutant(
        name="a cut turn has calls",
        target="rljob_runtime.gateway.gateway:Gateway._keep",
        before="request.calls_allowed and turn.finish_reason is FinishReason.STOP",
        after="request.calls_allowed",
        tests=(f"{GATEWAY}::test_a_call_of_a_turn_that_was_cut_is_none",),
    ),
    Mutant(
        name="several answers are one",
        target="rljob_runtime.gateway.wire.fields:refuse_several",
        before="isinstance(n, bool) or n != 1",
        after="isinstance(n, bool)",
        tests=(f"{REQUESTS}::test_a_chat_request_that_cannot_be_served_is_refused",),
    ),
    Mutant(
        name="a client's retry is a new request",
        target="rljob_runtime.gateway.server:_retry",
        before="int(count) > 0",
        after="False",
        tests=(f"{OPENAI}::test_a_client_that_gives_up_and_sends_again_receives_the_recorded_turn",),
    ),
    Mutant(
        name="the list of models is open to everybody",
        target="rljob_runtime.gateway.server:gateway_app.models",
        before="_capability(request, key, now())",
        after="",
        tests=(f"{OPENAI}::test_no_route_of_the_model_opens_without_a_capability",),
    ),
    Mutant(
        name="a renderer drops the reasoning of earlier turns",
        target="rljob_runtime.gateway.text.known_text:KnownText.__init__",
        before="type(config)(thinking_retention=KEPT_REASONING)",
        after="config",
        tests=(f"{KNOWN}::test_a_turn_goes_on_with_its_reasoning_as_it_was_sampled",),
    ),
    Mutant(
        name="each turn holds its whole prompt",
        target="rljob_runtime.gateway.gateway:Gateway._keep",
        before="paths.deepest(conversation[:-1])",
        after="None",
        tests=(f"{GATEWAY}::test_an_attempt_costs_the_tokens_of_its_tree",),
    ),
    Mutant(
        name="a runner leases episodes of every environment",
        target="rljob_runtime.gateway.wire.runner_requests:parse_lease",
        before='given.get("environment") not in (None, environment)',
        after="False",
        tests=(f"{ENVIRONMENTS}::test_a_runner_leases_no_episode_of_another_environment",),
    ),
    Mutant(
        name="a runner speaks for one of another environment",
        target="rljob_runtime.gateway.environment_routes:_full_name",
        before='f"{environment}/{runner}"',
        after="runner",
        tests=(f"{ENVIRONMENTS}::test_a_runner_does_not_speak_for_one_of_another_environment",),
    ),
    Mutant(
        name="a capability opens the routes of runners",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes._environment",
        before="self.access.runners_key",
        after="self.access.capability_key",
        tests=(f"{ENVIRONMENTS}::test_no_route_opens_without_the_key_of_an_environment",),
    ),
    Mutant(
        name="an attempt whose runner left is lost",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes._wait",
        before="await self._hand_back(runner, found)",
        after="pass",
        tests=(f"{ENVIRONMENTS}::test_an_attempt_whose_runner_left_goes_back",),
    ),
    Mutant(
        name="a runner that left goes on waiting",
        target="rljob_runtime.gateway.environment_routes:_has_left",
        before="request.transport is None or request.transport.is_closing()",
        after="False",
        tests=(f"{ENVIRONMENTS}::test_a_runner_that_left_asks_for_one_short_span_more_at_most",),
    ),
    Mutant(
        name="a coordinator that is away refuses for good",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes._asked",
        before="503",
        after="400",
        tests=(f"{ENVIRONMENTS}::test_requests_may_be_sent_again_while_the_coordinator_is_away",),
    ),
    Mutant(
        name="a report of an attempt that ended may be repeated",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes.done",
        before="410",
        after="503",
        tests=(f"{ENVIRONMENTS}::test_the_report_of_an_attempt_that_has_ended_is_refused_for_good",),
    ),
    Mutant(
        name="a capability ends before its attempt",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes.lease",
        before="math.ceil(deadline)",
        after="math.floor(deadline)",
        tests=(f"{ENVIRONMENTS}::test_a_runner_receives_the_attempt_with_its_capability",),
    ),
    Mutant(
        name="a reward may be infinite",
        target="rljob_runtime.gateway.wire.runner_requests:_number",
        before="math.isfinite(number)",
        after="True",
        tests=(f"{ENVIRONMENTS}::test_a_reward_is_finite",),
    ),
    Mutant(
        name="a long report is read",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes._body",
        before="self.access.most_bytes",
        after="1 << 30",
        tests=(f"{ENVIRONMENTS}::test_a_long_body_is_refused",),
    ),
)
