"""Mutants of rljob_runtime.relay."""

from hack.mutants import Mutant

FUZZ = "tests/unit/relay/test_fuzz.py"
RECEIVER = "tests/unit/relay/test_receiver.py"
REPAIR = "tests/unit/relay/test_repair.py"
RELAY_SEGMENT = "tests/unit/relay/test_segment.py"
STRANGERS = "tests/unit/relay/test_strangers.py"
SEGMENT = (
    f"{RELAY_SEGMENT}::test_a_draft_is_not_committed_before_every_chunk_is_verified",
    f"{RELAY_SEGMENT}::test_a_chunk_with_another_checksum_is_not_accepted",
    f"{RELAY_SEGMENT}::test_versions_only_rise",
)

MUTANTS = (
    Mutant(
        name="a relay accepts an older chain",
        target="rljob_runtime.relay.fencing:FencingToken.refusal",
        before="other.chain < self.chain",
        after="False",
        tests=("tests/unit/relay/network/test_wire.py::test_exactly_the_lower_is_refused_and_the_higher_adopted",),
        canary=True,
    ),
    Mutant(
        name="an inbox that is gone is waited for",
        target="rljob_runtime.relay.gradient_transfer:GradientSender.deliver",
        before="publisher.link[0] in GIVEN_UP",
        after="False",
        tests=("tests/unit/training/loans/test_worker.py::test_a_delivery_ends_when_the_inbox_is_lost_or_refuses",),
    ),
    Mutant(
        name="a publisher that sends no more ships",
        target="rljob_runtime.relay.publisher:Publisher.ship",
        before="self._sender.check()",
        after="pass",
        tests=(f"{FUZZ}::test_a_publisher_that_sends_no_more_ships_nothing",),
    ),
    Mutant(
        name="a caller may speak for ever",
        target="rljob_runtime.relay.receiver:Receiver._admit_caller",
        before="self._settings.handshake_seconds",
        after="1e6",
        tests=(STRANGERS,),
    ),
    Mutant(
        name="one host takes every slot",
        target="rljob_runtime.relay.receiver:MAX_CALLERS",
        before="16, 4",
        after="16, 16",
        tests=(STRANGERS,),
    ),
    Mutant(
        name="a relay ends without waiting for the caller that it lets in",
        target="rljob_runtime.relay.receiver:Receiver.close",
        before="""
            with self._turn:  # A thread inside may still admit its caller; later ones see `_closing`.
                active = self._active
        """,
        after="""
            if True:  # Who has it may still admit its caller; later ones see `_closing`.
                active = self._active
        """,
        tests=(f"{RECEIVER}::test_a_caller_that_is_let_in_while_the_relay_ends_is_ended_too",),
    ),
    Mutant(
        name="a relay that has ended lets a caller in",
        target="rljob_runtime.relay.receiver:Receiver._admit_caller",
        before='caller.refuse(wire.BUSY, "this relay is ending")',
        after="pass",
        tests=(f"{RECEIVER}::test_a_caller_in_the_handshake_of_an_ended_relay_is_refused",),
    ),
    Mutant(
        name="the predecessor before may go on writing",
        target="rljob_runtime.relay.relay:Relay.join",
        before="self._predecessor_changed(chain)",
        after="False",
        tests=("tests/unit/relay/test_chain.py::test_a_new_chain_ends_the_connection_of_a_former_predecessor",),
    ),
    Mutant(
        name="a relay that accepts no connection is alive",
        target="rljob_runtime.relay.relay:Relay._check_term",
        before="self._receiver.check()",
        after="pass",
        tests=(f"{FUZZ}::test_a_relay_that_serves_no_more_counts_as_lost",),
    ),
    Mutant(
        name="readers are given a version before it is whole",
        target="rljob_runtime.relay.segment:SegmentWriter.commit",
        before="not self.owns(draft) or not draft.complete",
        after="not self.owns(draft)",
        tests=SEGMENT,
    ),
    Mutant(
        name="a successor may speak for ever",
        target="rljob_runtime.relay.sender:Sender._connect",
        before="self._settings.handshake_seconds",
        after="1e6",
        tests=(STRANGERS,),
    ),
    Mutant(
        name="a link that waits does not see its successor end",
        target="rljob_runtime.relay.sender:Sender._heartbeat",
        before="channel.check()",
        after="pass",
        tests=(f"{REPAIR}::test_a_broken_socket_is_noticed_immediately",),
    ),
    Mutant(
        name="a link waits for a machine without power as long as for a busy one",
        target="rljob_runtime.relay.sender:Sender._connect",
        before="self._settings.answer_seconds",
        after="self._settings.silence_seconds",
        tests=(f"{REPAIR}::test_a_machine_without_power_is_given_the_time_of_one_answer",),
    ),
    Mutant(
        name="a chunk's checksum is not looked at",
        target="rljob_runtime.relay.slot:Slot.accept",
        before="self.manifest.checksums[index] != checksum",
        after="False",
        tests=SEGMENT,
        canary=True,
    ),
    Mutant(
        name="a new predecessor is asked for the whole version",
        target="rljob_runtime.relay.version_store:VersionStore.admit",
        before="self._draft is not None and self._draft.manifest.version == version",
        after="False",
        tests=(f"{REPAIR}::test_after_any_death_the_rest_receive_each_chunk_once",),
    ),
)
