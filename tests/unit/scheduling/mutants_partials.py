"""Mutants of rljob_runtime.scheduling: partial responses."""

from hack.mutants import Mutant

LOOP = "tests/unit/coordinator/asynchronous/test_loop.py"
PARTIAL_RESPONSES = "tests/unit/scheduling/test_partial_responses.py"

MUTANTS = (
    Mutant(
        name="tokens are taken from any sender",
        target="rljob_runtime.scheduling.partial_responses:Partials.accept",
        before="held is None or held.lease != lease",
        after="held is None",
        tests=(PARTIAL_RESPONSES,),
    ),
    Mutant(
        name="repeated tokens are appended again",
        target="rljob_runtime.scheduling.partial_responses:Partials.accept",
        before="token_ids[known:]",
        after="token_ids",
        tests=(PARTIAL_RESPONSES,),
    ),
    Mutant(
        name="a move keeps what its source made after it",
        target="rljob_runtime.scheduling.partial_responses:Partials.move",
        before="del held.token_ids[offset:]",
        after="pass",
        tests=(f"{LOOP}::test_the_last_long_responses_move_together",),
    ),
)
