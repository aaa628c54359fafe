"""Mutants of rljob_runtime.relay.network."""

from hack.mutants import Mutant

WIRE = "tests/unit/relay/network/test_wire.py"
STRANGERS = "tests/unit/relay/test_strangers.py"

MUTANTS = (
    Mutant(
        name="a thread of a relay ends unheard",
        target="rljob_runtime.relay.network.service_thread:Service._run",
        before="self._failure = error",
        after="pass",
        tests=("tests/unit/relay/test_fuzz.py::test_the_end_of_a_service_is_said_at_the_next_call",),
    ),
    Mutant(
        name="a machine whose process ended counts as gone",
        target="rljob_runtime.relay.network.tcp:Tcp.reaches",
        before="error.errno in ANSWERS",
        after="False",
        tests=(f"{WIRE}::test_a_machine_without_a_listener_answers",),
    ),
    Mutant(
        name="trouble of its own makes a neighbour a witness",
        target="rljob_runtime.relay.network.tcp:Tcp.reaches",
        before="error.errno not in SILENCE",
        after="False",
        tests=(f"{WIRE}::test_trouble_of_ones_own_says_nothing_about_the_other",),
    ),
    Mutant(
        name="one lost packet makes a neighbour a witness",
        target="rljob_runtime.relay.network.tcp:PROBES",
        before="2",
        after="1",
        tests=(f"{WIRE}::test_one_lost_packet_makes_no_witness",),
    ),
    Mutant(
        name="a stranger's nesting ends the link",
        target="rljob_runtime.relay.network.wire:Channel.receive",
        before="(ValueError, RecursionError)",
        after="ValueError",
        tests=(STRANGERS,),
    ),
    Mutant(
        name="half a character is compared",
        target="rljob_runtime.relay.network.wire:_same",
        before=(
            "isinstance(given, str) and given.isascii() and hmac.compare_digest(expected.encode(), given.encode())"
        ),
        after="isinstance(given, str) and hmac.compare_digest(expected.encode(), given.encode())",
        tests=(STRANGERS,),
    ),
)
