"""Mutants of rljob_runtime.simulator.invariants."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="an ended response may begin again without a hand-back",
        target="rljob_runtime.simulator.invariants.episodes:EpisodeTexts.begins_again",
        before="not self._handed_back[key]",
        after="False",
        tests=(
            "tests/unit/simulator/invariants/test_on_policy.py"
            "::test_an_ended_response_begins_again_once_for_each_hand_back",
        ),
    ),
    Mutant(
        name="the simulator lets a stored call of a tool be executed again",
        target="rljob_runtime.simulator.invariants.episodes:EpisodeTexts.called",
        before="place in self._stored_calls and event.what == EXECUTED",
        after="False",
        tests=(
            "tests/unit/simulator/invariants/test_on_policy.py::test_a_stored_call_of_a_tool_is_executed_again_in_a_replay_only",
        ),
    ),
    Mutant(
        name="a round without its samples is right",
        target="rljob_runtime.simulator.invariants.samples:sample_faults",
        before="groups != {prompt for prompt, _ in trained}",
        after="False",
        tests=("tests/simulation/test_samples.py::test_a_response_that_is_missing_or_twice_is_noticed",),
    ),
    Mutant(
        name="an evaluation without its samples is right",
        target="rljob_runtime.simulator.invariants.samples:evaluation_sample_faults",
        before="results.keys() - set(files.rounds())",
        after="set()",
        tests=("tests/simulation/test_samples.py::test_an_evaluation_without_a_file_is_noticed",),
    ),
    Mutant(
        name="a reward that no runner reported is right",
        target="rljob_runtime.simulator.invariants.episodes:EpisodeTexts.reward_problem",
        before="{None, scored.reward} & self._rewards[key]",
        after="True",
        tests=("tests/simulation/test_episodes.py::test_a_reward_that_no_runner_reported_is_noticed",),
    ),
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
    Mutant(
        name="an update may train on responses of an evaluation",
        target="rljob_runtime.simulator.invariants.evaluations:EvaluationRecord.trained",
        before="key.prompt.evaluation is not None",
        after="False",
        tests=("tests/unit/simulator/invariants/test_evaluations.py",),
    ),
    Mutant(
        name="an evaluation may be of other weights",
        target="rljob_runtime.simulator.invariants.evaluations:EvaluationRecord.submitted",
        before="held == contents[step]",
        after="True",
        tests=(
            "tests/unit/simulator/invariants/test_evaluations.py::"
            "test_a_response_is_generated_with_the_weights_of_its_step",
        ),
    ),
    Mutant(
        name="an evaluation that was due may be left out",
        target="rljob_runtime.simulator.invariants.evaluations:EvaluationRecord.end",
        before="is_due(every, step, done)",
        after="False",
        tests=("tests/unit/simulator/invariants/test_evaluations.py::test_each_evaluation_that_was_due_has_ended",),
    ),
    Mutant(
        name="a turn is taken for an older one of the same text",
        target="rljob_runtime.simulator.invariants.episodes:EpisodeTexts.problem",
        before="(pair[0] < response.weight_version, pair[0])",
        after="pair[0]",
        tests=(
            "tests/unit/simulator/invariants/test_episodes.py"
            "::test_equal_texts_of_two_versions_are_those_of_the_response",
        ),
    ),
    Mutant(
        name="a time-out that spans two coordinators is right",
        target="rljob_runtime.simulator.invariants.episodes:EpisodeTexts.time_out_problem",
        before="begun < one <= ended",
        after="False",
        tests=(
            "tests/unit/simulator/invariants/test_episodes.py::test_a_time_out_that_spans_two_coordinators_is_told",
        ),
    ),
)
