"""Mutants of rljob_runtime.gateway.wire."""

from hack.mutants import Mutant

GATEWAY = "tests/unit/gateway/test_gateway.py"
ENVIRONMENTS = "tests/unit/gateway/test_environment_routes.py"
REQUESTS = "tests/unit/gateway/wire/test_requests.py"
REPEATS = "tests/unit/gateway/wire/test_repeats.py"

MUTANTS = (
    Mutant(
        name="several answers are one",
        target="rljob_runtime.gateway.wire.fields:refuse_several",
        before="isinstance(n, bool) or n != 1",
        after="isinstance(n, bool)",
        tests=(f"{REQUESTS}::test_a_chat_request_that_cannot_be_served_is_refused",),
    ),
    Mutant(
        name="a runner leases episodes of every environment",
        target="rljob_runtime.gateway.wire.runner_requests:parse_lease",
        before='given.get("environment") not in (None, environment)',
        after="False",
        tests=(f"{ENVIRONMENTS}::test_a_runner_leases_no_episode_of_another_environment",),
    ),
    Mutant(
        name="a reward may be infinite",
        target="rljob_runtime.gateway.wire.runner_requests:_number",
        before="math.isfinite(number)",
        after="True",
        tests=(f"{ENVIRONMENTS}::test_a_reward_is_finite",),
    ),
    Mutant(
        name="a call with arguments of any depth is one",
        target="rljob_runtime.gateway.wire.fields:parse_object",
        before="not is_deep(found)",
        after="True",
        tests=(f"{GATEWAY}::test_a_deeply_nested_call_is_text_and_the_conversation_continues",),
    ),
    Mutant(
        name="a body has any number of texts",
        target="rljob_runtime.gateway.wire.fields:parse_body",
        before="(body.count(b'\"') - body.count(b'\\\\\"')) // 2 > most_texts",
        after="False",
        tests=(f"{REQUESTS}::test_a_body_of_more_texts_than_any_conversation_has_is_refused_unread",),
    ),
    Mutant(
        name="a heartbeat has as many texts as a conversation",
        target="rljob_runtime.gateway.wire.runner_requests:parse_heartbeat",
        before="parse_body(body, MOST_TEXTS)",
        after="parse_body(body)",
        tests=(
            "tests/unit/gateway/test_environment_routes.py"
            "::test_a_heartbeat_of_the_most_episodes_is_read_and_more_texts_are_not",
        ),
    ),
    Mutant(
        name="a number beyond all numbers is carried on",
        target="rljob_runtime.gateway.wire.fields:canonical",
        before="allow_nan=False",
        after="",
        tests=(f"{REQUESTS}::test_a_body_that_is_no_object_is_refused", "tests/unit/gateway/text/test_tool_calls.py"),
    ),
    Mutant(
        name="a harness states any limit",
        target="rljob_runtime.gateway.wire.runner_requests:_one_of",
        before="value not in allowed",
        after="False",
        tests=(
            "tests/unit/gateway/test_environment_routes.py"
            "::test_a_limit_that_no_harness_states_is_refused_with_those_that_may_be",
        ),
    ),
    Mutant(
        name="a runner states a failure of the gateway",
        target="rljob_runtime.gateway.wire.runner_requests:parse_done",
        before="RUNNERS_PARTS",
        after="(*RUNNERS_PARTS, type(RUNNERS_PARTS[0]).GATEWAY)",
        tests=(f"{ENVIRONMENTS}::test_no_runner_states_a_failure_of_the_gateway",),
    ),
    Mutant(
        name="an answer of any length is kept",
        target="rljob_runtime.gateway.wire.runner_requests:parse_done",
        before="len(answer) > MOST_ANSWER",
        after="False",
        tests=(f"{ENVIRONMENTS}::test_a_stated_answer_has_a_bound",),
    ),
    Mutant(
        name="an equal request is always a retry",
        target="rljob_runtime.gateway.wire.repeats:_Equal.ask",
        before="not self.numbers",
        after="True",
        tests=(f"{REPEATS}::test_a_lost_answer_is_taken_up_once_and_the_first_comes_first",),
    ),
    Mutant(
        name="a lost answer is sampled again",
        target="rljob_runtime.gateway.wire.repeats:_Equal.ask",
        before="lost is not None",
        after="False",
        tests=(f"{REPEATS}::test_a_client_that_lost_its_answer_receives_the_recorded_one",),
    ),
    Mutant(
        name="only the newest of equal requests is a lost one",
        target="rljob_runtime.gateway.wire.repeats:_Equal.ask",
        before="self.unanswered.items()",
        after="list(self.unanswered.items())[-1:]",
        tests=(
            f"{REPEATS}::test_clients_that_all_lost_their_answers_each_receive_one_of_them",
            f"{REPEATS}::test_a_lost_answer_is_received_after_others_have_asked",
        ),
    ),
    Mutant(
        name="a lost answer is given to each further client",
        target="rljob_runtime.gateway.wire.repeats:_Equal.ask",
        before="self.unanswered[asked.number] = asked",
        after="self.unanswered.setdefault(asked.number, asked)",
        tests=(f"{REPEATS}::test_clients_that_all_lost_their_answers_each_receive_one_of_them",),
    ),
    Mutant(
        name="a lost answer is asked for by another number",
        target="rljob_runtime.gateway.wire.repeats:_Equal.ask",
        before="Asked(True, has_left, lost)",
        after="Asked(True, has_left, RequestNumber(self.series, self.numbers))",
        tests=(f"{REPEATS}::test_the_turn_of_a_lost_answer_is_given_and_not_the_newest",),
    ),
    Mutant(
        name="an answered request stays a lost one",
        target="rljob_runtime.gateway.wire.repeats:_Equal.end",
        before="del self.unanswered[asked.number]",
        after="asked.is_answered = False",
        tests=(f"{REPEATS}::test_a_client_that_has_its_answer_gets_another_one",),
    ),
    Mutant(
        name="any number of requests is remembered",
        target="rljob_runtime.gateway.wire.repeats:Repeats._equal",
        before="self._remembered > self._most",
        after="False",
        tests=(f"{REPEATS}::test_so_many_requests_are_remembered",),
    ),
    Mutant(
        name="requests of ended attempts count as remembered",
        target="rljob_runtime.gateway.wire.repeats:Repeats.forget",
        before="len(self._attempts.pop(episode, ()))",
        after="0 * len(self._attempts.pop(episode, ()))",
        tests=(f"{REPEATS}::test_an_attempt_that_is_forgotten_leaves_no_request",),
    ),
)
