"""Mutants of rljob_runtime.scheduling."""

from hack.mutants import Mutant

ROUND = "tests/unit/scheduling/test_round.py"
TAIL_BATCHING = "tests/unit/scheduling/test_tail_batching.py"
NEXT_ROUND = (
    f"{TAIL_BATCHING}::test_the_next_round",
    f"{TAIL_BATCHING}::test_a_job_trains_once_on_each_prompt_of_plain_rounds",
)

MUTANTS = (
    Mutant(
        name="engines that do not start at once never do",
        target="rljob_runtime.scheduling.layout_refusals:LayoutRefusals.unable",
        before="self.count >= MIN_REFUSALS and self.last - self.first >= patience",
        after="self.count >= MIN_REFUSALS",
        tests=("tests/unit/coordinator/fleet/test_layouts.py::test_engines_that_start_after_a_while_end_no_job",),
    ),
    Mutant(
        name="a first round of another engine's numbers is followed by a second",
        target="rljob_runtime.scheduling.logprob_agreement:engine_mismatch",
        before="kl <= LARGEST_MISMATCH",
        after="not kl > 1e9",
        tests=(
            (
                "tests/unit/scheduling/test_logprob_agreement.py::test_a_job_whose_engine_disagrees_stops_at_its_"
                "first_round"
            ),
        ),
    ),
    Mutant(
        name="a wrong run shows how long a test takes",
        target="rljob_runtime.scheduling.reward_timeout:AdaptiveTimeout._learn",
        before="right and kept > self._anchors.get(test, -1)",
        after="kept > self._anchors.get(test, -1)",
        tests=("tests/unit/scheduling/test_reward_timeout.py::test_only_right_runs_move_the_anchor_and_only_up",),
        canary=True,
    ),
    Mutant(
        name="nobody wins the race inside a prompt",
        target="rljob_runtime.scheduling.round:Round._judge",
        before="self._end([key for key in self._keys[prompt] if key not in places], SampleState.LOST)",
        after="pass",
        tests=(ROUND,),
    ),
    Mutant(
        name="nobody wins the race between prompts",
        target="rljob_runtime.scheduling.round:Round._decide_race",
        before="len(self._full) >= self.plan.shape.groups",
        after="False",
        tests=(ROUND,),
        canary=True,
    ),
    Mutant(
        name="a race lasts until a reward comes",
        target="rljob_runtime.scheduling.round:Round.generated",
        before="self._decide_race()",
        after="",
        tests=(ROUND,),
    ),
    Mutant(
        name="a prompt that races again forgets what it had",
        target="rljob_runtime.scheduling.round:Round._race_again",
        before="self._samples[key].racing_state",
        after="SampleState.WAITING",
        tests=(ROUND,),
    ),
    Mutant(
        name="a place that is given back stays empty",
        target="rljob_runtime.scheduling.round:Round._race_again",
        before="self._samples[key].state is SampleState.LOST",
        after="False",
        tests=(ROUND,),
    ),
    Mutant(
        name="groups of equal rewards take places",
        target="rljob_runtime.scheduling.round:Round._judge",
        before="self.plan.rules.drop_equal and len(rewards) == 1 and None not in rewards",
        after="False",
        tests=(ROUND,),
    ),
    Mutant(
        name="what is trained on is chosen by what can be scored",
        target="rljob_runtime.scheduling.round:Round.reward_failed",
        before="self.plan.rules.max_failures + 1 if by_response else 1",
        after="1",
        tests=(
            (
                "tests/unit/coordinator/generation/test_scoring.py::test_a_group_of_which_a_response_cannot_be_"
                "scored_is_given_up_at_once[OnPolicy]"
            ),
        ),
    ),
    Mutant(
        name="a long round takes what it likes",
        target="rljob_runtime.scheduling.tail_batching:next_round",
        before="min(queued, groups)",
        after="0",
        tests=NEXT_ROUND,
        canary=True,
    ),
    Mutant(
        name="a job ends with long prompts left",
        target="rljob_runtime.scheduling.tail_batching:next_round",
        before="queued + launched - groups <= (rounds_left - 1) * groups",
        after="True",
        tests=NEXT_ROUND,
    ),
    Mutant(
        name="a lost weight version's number is used again",
        target="rljob_runtime.scheduling.weight_versions:Versions.next_version",
        before="(entry.version for entry in self.history)",
        after="(entry.version for entry in self.history if not entry.abandoned)",
        tests=("tests/unit/scheduling/test_decisions.py",),
    ),
    Mutant(
        name="the numbers of a lost store are used again",
        target="rljob_runtime.scheduling.weight_versions:Versions.with_reported",
        before="self if self.history else self.with_observed(version + UNREPORTED)",
        after="self",
        tests=(
            (
                "tests/unit/coordinator/trainer/test_recovery.py::test_a_history_that_was_lost_begins_above_what_"
                "was_reported"
            ),
        ),
        canary=True,
    ),
)
