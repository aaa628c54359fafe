"""Mutants of what a coordinator knows of the rounds that another one coordinated."""

from hack.mutants import Mutant

POLICY_INPUTS = "tests/unit/coordinator/on_policy/test_policy_inputs.py"

MUTANTS = (
    Mutant(
        name="a restarted coordinator forgets the rates of loans",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop.begin",
        before="its.rounds.loan_measurements(workers, settings.gradients)",
        after="self._measured",
        tests=(f"{POLICY_INPUTS}::test_a_restarted_coordinator_decides_from_the_same",),
    ),
    Mutant(
        name="tails are predicted from the lengths of this round alone",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._generate",
        before="its.recent_lengths(LENGTHS_USED, limit)",
        after="[]",
        tests=(f"{POLICY_INPUTS}::test_a_restarted_coordinator_decides_from_the_same",),
    ),
)
