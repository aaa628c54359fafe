"""Mutants of rljob_runtime.simulator.invariants."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="the simulator does not look at tokens",
        target="rljob_runtime.simulator.invariants.common:Invariants._not_invented",
        before="(tuple(response.token_ids), tuple(response.logprobs)) == made",
        after="made is not None",
        tests=(
            (
                "tests/unit/simulator/invariants/test_on_policy.py::test_tokens_of_other_weights_are_seen_whatever_"
                "their_version_says"
            ),
        ),
        canary=True,
    ),
)
