"""Mutants of rounds whose responses are episodes."""

from __future__ import annotations

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="a round forgets the failures before its coordinator was replaced",
        target="rljob_runtime.coordinator.on_policy.round_responses:RoundResponses.__init__",
        before="stats.aborted_samples += sum(one.failures for one in opened.saved.values())",
        after="",
        tests=(
            "tests/unit/coordinator/episodes/test_job.py"
            "::test_a_round_counts_the_failures_before_its_coordinator_was_replaced",
        ),
    ),
    Mutant(
        name="losers of a race keep their runners",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._abort_losers",
        before="self._episodes.release(launch.key for launch in aborts)",
        after="",
        tests=(
            "tests/unit/coordinator/episodes/test_without_engine.py::test_losers_of_a_race_leave_their_places_to_others",
        ),
    ),
    Mutant(
        name="time in tools is in no prediction",
        target="rljob_runtime.coordinator.on_policy.round_inputs:inputs_of",
        before="outside_time([one.report for one in rounds])",
        after="outside_time([])",
        tests=(
            "tests/simulation/test_fidelity.py"
            "::test_rounds_of_episodes_are_predicted_with_the_time_of_their_tools[10.0]",
        ),
    ),
    Mutant(
        name="loans of episodes are judged as if these had no tools",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._observed",
        before="outside=self._outside",
        after="outside=engines.outside",
        tests=("tests/simulation/test_episodes.py::test_looks_know_the_time_outside_of_the_round_before",),
    ),
    Mutant(
        name="a round closes without the digests of its episodes",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._close",
        before="self._context.episodes.digests(groups)",
        after="{}",
        tests=("tests/simulation/test_episodes.py::test_seeds_with_environments_hold_every_invariant",),
    ),
)
