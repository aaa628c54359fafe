"""Mutants of rljob_runtime.gateway."""

from hack.mutants import Mutant

CAPABILITY = "tests/unit/gateway/test_capability.py"
GATEWAY = "tests/unit/gateway/test_gateway.py"
ENVIRONMENTS = "tests/unit/gateway/test_environment_routes.py"
KEPT_PROCESS = "tests/unit/gateway/test_kept_process.py"
MEMORY = "tests/unit/gateway/test_memory.py"
OPENAI = "tests/unit/gateway/test_openai_client.py"
REPEATS = "tests/unit/gateway/wire/test_repeats.py"

MUTANTS = (
    Mutant(
        name="a conversation is without its last answer",
        target="rljob_runtime.gateway.answers:conversation_answer",
        before="[*messages, _message(answered, reply)]",
        after="[*messages]",
        tests=(f"{OPENAI}::test_a_conversation_is_what_the_client_sent_and_received",),
    ),
    Mutant(
        name="a program reads its conversation many times at a time",
        target="rljob_runtime.gateway.gateway:Gateway._conversation",
        before="episode in self._conversations",
        after="False",
        tests=(f"{OPENAI}::test_a_conversation_is_read_once_at_a_time",),
    ),
    Mutant(
        name="a conversation is closed at the deadline",
        target="rljob_runtime.gateway.server:gateway_app",
        before="_capability(request, key, now() - settings.overtime_seconds)",
        after="_capability(request, key, now())",
        tests=(f"{OPENAI}::test_a_conversation_can_be_read_while_its_attempt_is_scored",),
    ),
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
        before="replace(own, retry=True)",
        after="own",
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
        target="rljob_runtime.gateway.gateway:Gateway._said",
        before="request.calls_allowed and turn.finish_reason is FinishReason.STOP",
        after="request.calls_allowed",
        tests=(f"{GATEWAY}::test_a_call_of_a_turn_that_was_cut_is_none",),
    ),
    Mutant(
        name="a body is read before there is room for it",
        target="rljob_runtime.gateway.memory:Memory.room",
        before="await self._granted(claim, seconds, sender)",
        after="pass",
        tests=(f"{MEMORY}::test_bodies_of_one_attempt_wait_for_its_share_and_others_do_not",),
    ),
    Mutant(
        name="an answer that no client reads costs nothing",
        target="rljob_runtime.gateway.server:gateway_app.answered",
        before="len(body) + len(found.body)",
        after="len(body)",
        tests=(f"{MEMORY}::test_an_answer_that_no_client_reads_is_counted_until_its_time_is_over",),
    ),
    Mutant(
        name="a client that leaves is a failure of the gateway",
        target="rljob_runtime.gateway.http:was_sent",
        before="ConnectionError",
        after="KeyError",
        tests=(f"{MEMORY}::test_a_client_that_leaves_is_no_failure_and_holds_nothing",),
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
        name="each turn holds its whole prompt",
        target="rljob_runtime.gateway.gateway:Gateway._keep",
        before="paths.deepest(conversation[:-1])",
        after="None",
        tests=(f"{GATEWAY}::test_an_attempt_costs_the_tokens_of_its_tree",),
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
        before="await self._hand_back(environment, runner, one)",
        after="pass",
        tests=(f"{ENVIRONMENTS}::test_an_attempt_whose_runner_left_goes_back",),
    ),
    Mutant(
        name="a runner that left goes on waiting",
        target="rljob_runtime.gateway.http:has_left",
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
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes._assignment",
        before="math.ceil(deadline)",
        after="math.floor(deadline)",
        tests=(f"{ENVIRONMENTS}::test_a_runner_receives_the_attempt_with_its_capability",),
    ),
    Mutant(
        name="a runner's body is read whatever is held",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes._body",
        before="self.memory.room(environment, amount, self.access.read_seconds)",
        after="self.memory.room(environment, 0, self.access.read_seconds)",
        tests=(f"{ENVIRONMENTS}::test_a_body_is_read_when_there_is_room_for_it",),
    ),
    Mutant(
        name="a leased attempt that no runner reads costs nothing",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes.lease",
        before="answer.content_length or 0",
        after="0",
        tests=(f"{ENVIRONMENTS}::test_a_lease_that_no_runner_reads_holds_back_leases_only",),
    ),
    Mutant(
        name="a heartbeat waits until a lease is read",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes._body",
        before="self.memory",
        after="Memory(self.unread)",
        tests=(f"{ENVIRONMENTS}::test_a_lease_that_no_runner_reads_holds_back_leases_only",),
    ),
    Mutant(
        name="attempts are leased whatever is unread",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes._wait",
        before="self.unread.has_room(environment)",
        after="True",
        tests=(f"{ENVIRONMENTS}::test_a_lease_that_no_runner_reads_holds_back_leases_only",),
    ),
    Mutant(
        name="a long report is read",
        target="rljob_runtime.gateway.environment_routes:EnvironmentRoutes._body",
        before="self.access.most_bytes",
        after="1 << 30",
        tests=(f"{ENVIRONMENTS}::test_a_long_body_is_refused",),
    ),
    Mutant(
        name="an answer that cannot be read is an error",
        target="rljob_runtime.gateway.gateway:Gateway._reply",
        before='return ReplyText("", malformed=1)',
        after="raise",
        tests=(f"{GATEWAY}::test_an_answer_that_no_tokenizer_can_read_is_an_empty_one",),
    ),
    Mutant(
        name="a corrected system clock ends all attempts",
        target="rljob_runtime.gateway.steady_clock:steady_clock",
        before="lambda: offset + elapsed()",
        after="system",
        tests=("tests/unit/gateway/test_steady_clock.py",),
    ),
    Mutant(
        name="a process that is told what it cannot do is started again",
        target="rljob_runtime.gateway.kept_process:KeptProcess.run",
        before="status == REFUSED",
        after="False",
        tests=(f"{KEPT_PROCESS}::test_a_process_that_is_told_what_it_cannot_do_is_not_started_again",),
    ),
    Mutant(
        name="what a process started outlives it",
        target="rljob_runtime.gateway.kept_process:_end",
        before="os.killpg(process.pid, signal.SIGKILL)",
        after="process.kill()",
        tests=(f"{KEPT_PROCESS}::test_the_end_kills_a_process_that_does_not_end_and_what_it_started",),
    ),
    Mutant(
        name="refused requests are turns of the histogram",
        target="rljob_runtime.gateway.own_share:OwnShare.measured",
        before="""
            try:
                yield
            finally:
                _CURRENT.reset(token)
        """,
        after="""
            try:
                yield
            except Exception:
                pass
            finally:
                _CURRENT.reset(token)
        """,
        tests=("tests/unit/gateway/test_own_share.py::test_a_request_that_ends_by_an_error_is_no_turn",),
    ),
    Mutant(
        name="waits of runners hide those of agents",
        target="rljob_runtime.gateway.metrics:GatewayParts.totals",
        before="f'runner_{name}'",
        after="name",
        tests=("tests/unit/gateway/test_metrics.py",),
    ),
    Mutant(
        name="an answer that is sent counts as lost",
        target="rljob_runtime.gateway.server:gateway_app",
        before="await was_sent(request, response, settings.write_seconds) and is_there",
        after="not await was_sent(request, response, settings.write_seconds)",
        tests=(f"{REPEATS}::test_a_client_that_has_its_answer_gets_another_one",),
    ),
    Mutant(
        name="a revision makes a model of the hub an unknown one",
        target="rljob_runtime.gateway.config:hub_name",
        before="name.partition('@')[0]",
        after="name",
        tests=("tests/unit/gateway/text/test_renderers.py::test_a_model_of_the_hub_is_known_at_any_revision",),
    ),
)
