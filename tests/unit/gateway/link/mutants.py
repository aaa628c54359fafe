"""Mutants of rljob_runtime.gateway.link."""

from hack.mutants import Mutant

LINK = "tests/unit/gateway/link/test_link.py"
MESSAGES = "tests/unit/gateway/link/test_messages.py"

MUTANTS = (
    Mutant(
        name="a gateway that leaves undoes its turns",
        target="rljob_runtime.gateway.link.server:LinkServer._values",
        before="asyncio.shield(work)",
        after="work",
        tests=(f"{LINK}::test_the_turn_of_a_call_that_was_cancelled_is_finished",),
    ),
    Mutant(
        name="a lease without a runner takes an episode",
        target="rljob_runtime.gateway.link.server:LinkServer._values",
        before="isinstance(call, LeaseCall)",
        after="False",
        tests=(f"{LINK}::test_a_lease_that_was_cancelled_takes_no_episode",),
    ),
    Mutant(
        name="half a character reaches the coordinator's store",
        target="rljob_runtime.gateway.link.frames:text",
        before="not has_bytes(value)",
        after="False",
        tests=(f"{MESSAGES}::test_half_a_character_is_no_text",),
    ),
    Mutant(
        name="half a character is the name of a tool",
        target="rljob_runtime.gateway.link.messages:_tool_call_of",
        before="has_bytes(name)",
        after="True",
        tests=(f"{MESSAGES}::test_half_a_character_is_no_name_of_a_tool_and_may_be_observed",),
    ),
    Mutant(
        name="a gateway starts any number of calls",
        target="rljob_runtime.gateway.link.server:LinkServer._values",
        before="len(self._work) >= self._settings.calls",
        after="False",
        tests=(f"{LINK}::test_calls_beyond_the_bound_wait_here_and_are_refused_there",),
    ),
    Mutant(
        name="an error that no caller knows is not counted",
        target="rljob_runtime.gateway.link.server:LinkServer._frames",
        before="self.stats.unforeseen += 1",
        after="pass",
        tests=(f"{LINK}::test_an_unforeseen_error_is_logged_and_raises_peer_gone",),
    ),
    Mutant(
        name="other users reach the coordinator",
        target="rljob_runtime.gateway.link.server:_make_private",
        before="found.st_mode & 0o077",
        after="False",
        tests=(f"{LINK}::test_a_folder_that_others_can_open_is_refused",),
    ),
    Mutant(
        name="a gateway of another version is served",
        target="rljob_runtime.gateway.link.connection:welcome",
        before="given == PROTOCOL",
        after="True",
        tests=(f"{LINK}::test_another_version_is_refused_with_both",),
    ),
    Mutant(
        name="the coordinator goes on for a call that was cancelled",
        target="rljob_runtime.gateway.link.client:LinkClient._asked",
        before="self._connection is connection",
        after="False",
        tests=(f"{LINK}::test_a_lease_that_was_cancelled_takes_no_episode",),
    ),
    Mutant(
        name="calls of a broken connection are not counted",
        target="rljob_runtime.gateway.link.client:LinkClient._break",
        before="self.stats.broken_calls += 1",
        after="pass",
        tests=(f"{LINK}::test_a_coordinator_restart_ends_open_calls_and_admits_new_ones",),
    ),
    Mutant(
        name="a frame of any length is received",
        target="rljob_runtime.gateway.link.frames:sizes_of",
        before="payload > limits.payload",
        after="False",
        tests=(f"{MESSAGES}::test_a_frame_beyond_a_limit_is_neither_sent_nor_received",),
    ),
    Mutant(
        name="log-probs are rounded on their way",
        target="rljob_runtime.gateway.link.messages:_turn_blobs",
        before="turn.logprobs",
        after="[round(one, 4) for one in turn.logprobs]",
        tests=(f"{MESSAGES}::test_a_part_of_an_answer_is_what_was_sent",),
    ),
    Mutant(
        name="an array with a piece of a number is read",
        target="rljob_runtime.gateway.link.frames:_filled",
        before="len(blob) % target.itemsize",
        after="False",
        tests=(f"{MESSAGES}::test_a_frame_with_other_content_raises_one_kind_of_error",),
    ),
    Mutant(
        name="the coordinator's time is the gateway's share",
        target="rljob_runtime.gateway.link.client:LinkClient._asked",
        before="own_share.waited(waiting.settled_at - sent)",
        after="pass",
        tests=("tests/unit/gateway/test_own_share.py::test_the_link_counts_from_the_sent_call_to_its_answer",),
    ),
    Mutant(
        name="the limit that ended a harness is lost on its way",
        target="rljob_runtime.gateway.link.messages:_report_of",
        before="None if limit is None else HarnessLimit(limit)",
        after="None",
        tests=(f"{LINK}::test_every_call_and_its_answer_cross",),
    ),
)
