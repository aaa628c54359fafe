"""Mutants of how episodes end in their harnesses: by a limit, by an outage, or by a load that takes too long."""

from hack.mutants import Mutant

VERIFIERS = "tests/unit/envs/test_verifiers.py"

MUTANTS = (
    Mutant(
        name="the time of a rollout begins before its environment is loaded",
        target="rljob_env.verifiers.episode:_role",
        before="given['deadline'] - time.monotonic()",
        after="60.0",
        tests=(f"{VERIFIERS}::test_the_time_of_a_rollout_begins_when_its_environment_is_loaded",),
    ),
    Mutant(
        name="an environment may load for ever",
        target="rljob_env.verifiers.harness:VerifiersHarness.run",
        before="await self._load(given, whole)",
        after="pass",
        tests=(f"{VERIFIERS}::test_an_environment_that_loads_for_too_long_is_a_failure_of_ours",),
    ),
    Mutant(
        name="the load of an environment is the policy's time",
        target="rljob_env.verifiers.harness:VerifiersHarness.run",
        before="loaded > LOAD_SHARE * whole",
        after="False",
        tests=(f"{VERIFIERS}::test_a_time_out_after_a_long_load_is_a_failure_of_ours",),
    ),
)
