"""Mutants of what the gateway takes from foreign programs and models, and how much of it."""

from __future__ import annotations

from hack.mutants import Mutant

REQUESTS = "tests/unit/gateway/test_requests.py"

MUTANTS = (
    Mutant(
        name="each request reads the turns of its attempt",
        target="rljob_runtime.gateway.gateway:Gateway._read_paths",
        before="(reading := self._readings.get(episode)) is None",
        after="True",
        tests=("tests/unit/gateway/test_gateway.py::test_requests_of_an_attempt_wait_for_one_read_of_its_turns",),
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
        tests=(f"{REQUESTS}::test_a_body_that_is_no_object_is_refused", "tests/unit/gateway/test_tool_calls.py"),
    ),
    Mutant(
        name="arguments of a known template are not looked at",
        target="rljob_runtime.gateway.text.known_text:KnownText._call",
        before="parse_object(arguments) is None",
        after="False",
        tests=("tests/unit/gateway/test_known_templates.py::test_arguments_that_no_message_can_carry_are_no_call",),
    ),
    Mutant(
        name="what cannot be carried on is a reply",
        target="rljob_runtime.gateway.gateway:Gateway._reply",
        before="canonical(asdict(reply))",
        after="",
        tests=("tests/unit/gateway/test_gateway.py::test_a_reply_that_no_message_can_carry_says_nothing",),
    ),
    Mutant(
        name="a harness states any limit",
        target="rljob_runtime.gateway.wire.runner_requests:_one_of",
        before="value not in list(kind)",
        after="False",
        tests=(
            "tests/unit/gateway/test_environment_routes.py"
            "::test_a_limit_that_no_harness_states_is_refused_with_those_that_may_be",
        ),
    ),
)
