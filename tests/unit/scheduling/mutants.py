"""Mutants of rljob_runtime.scheduling."""

from hack.mutants import Mutant

ROUND = "tests/unit/scheduling/test_round.py"
TAIL_BATCHING = "tests/unit/scheduling/test_tail_batching.py"
NEXT_ROUND = (
    f"{TAIL_BATCHING}::test_the_next_round",
    f"{TAIL_BATCHING}::test_a_job_trains_once_on_each_prompt_of_plain_rounds",
)

EVALUATION = "tests/unit/scheduling/test_evaluation.py"

TRAINABILITY = "tests/unit/scheduling/test_trainability.py"

LAYOUT_SWITCH = "tests/unit/scheduling/layouts/test_layout_switch.py"

MUTANTS = (
    Mutant(
        name="an owner holds the bytes of all",
        target="rljob_runtime.scheduling.byte_budget:ByteBudget._grant",
        before="self._held[claim.owner] + claim.amount > self.share",
        after="False",
        tests=("tests/unit/scheduling/test_byte_budget.py::test_an_owner_waits_for_its_own_share_and_others_pass",),
    ),
    Mutant(
        name="claims are granted beyond the places",
        target="rljob_runtime.scheduling.byte_budget:ByteBudget._grant",
        before="self._granted == self.places",
        after="False",
        tests=(
            "tests/unit/scheduling/test_byte_budget.py::test_claims_beyond_the_places_wait_and_as_many_more_are_denied",
        ),
    ),
    Mutant(
        name="any number of claims waits",
        target="rljob_runtime.scheduling.byte_budget:ByteBudget.ask",
        before="len(self._waiting) > self.places",
        after="False",
        tests=(
            "tests/unit/scheduling/test_byte_budget.py::test_claims_beyond_the_places_wait_and_as_many_more_are_denied",
        ),
    ),
    Mutant(
        name="small claims starve a large one",
        target="rljob_runtime.scheduling.byte_budget:ByteBudget._grant",
        before="waiting += self._waiting[place:]\nbreak",
        after="waiting.append(claim)",
        tests=(
            "tests/unit/scheduling/test_byte_budget.py"
            "::test_a_large_claim_that_waits_for_room_is_not_starved_by_small_ones",
        ),
    ),
    Mutant(
        name="a response that waits for its machine is launched elsewhere",
        target="rljob_runtime.scheduling.round:Round.launch",
        before="key not in placed",
        after="placed.get(key) is None",
        tests=(f"{LAYOUT_SWITCH}::test_placed_responses_follow_their_placement_and_others_are_spread",),
    ),
    Mutant(
        name="the last weights are not evaluated",
        target="rljob_runtime.scheduling.evaluation:is_due",
        before="step % every_rounds == 0 or step == rounds",
        after="step % every_rounds == 0",
        tests=(f"{EVALUATION}::test_steps_that_are_evaluated",),
    ),
    Mutant(
        name="an evaluation takes replicas from a round",
        target="rljob_runtime.scheduling.evaluation:spare_room",
        before="urgent or not load.training",
        after="True",
        tests=(f"{EVALUATION}::test_room",),
    ),
    Mutant(
        name="the first idle replica takes the whole evaluation",
        target="rljob_runtime.scheduling.evaluation:spare_room",
        before="ceil((waiting + running) / len(loads))",
        after="waiting + running",
        tests=(f"{EVALUATION}::test_room",),
    ),
    Mutant(
        name="a wrong run shows how long a test takes",
        target="rljob_runtime.scheduling.reward_timeout:AdaptiveTimeout._learn",
        before="right and kept > self._anchors.get(test, -1)",
        after="kept > self._anchors.get(test, -1)",
        tests=("tests/unit/scheduling/test_reward_timeout.py::test_only_right_runs_move_the_anchor_and_only_up",),
    ),
    Mutant(
        name="no response wins the race inside a prompt",
        target="rljob_runtime.scheduling.round:Round._judge",
        before="self._end([key for key in self._keys[prompt] if key not in places], SampleState.LOST)",
        after="pass",
        tests=(ROUND,),
    ),
    Mutant(
        name="no prompt wins the race between prompts",
        target="rljob_runtime.scheduling.round:Round._decide_race",
        before="race.is_won",
        after="False",
        tests=(ROUND,),
        canary=True,
    ),
    Mutant(
        name="a race lasts until a reward comes",
        target="rljob_runtime.scheduling.round:Round.generated",
        before="self._decide_race(key.prompt.source)",
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
        before="rules.drop_equal",
        after="False",
        tests=(ROUND,),
    ),
    Mutant(
        name="a group is filtered for the rewards that have arrived",
        target="rljob_runtime.scheduling.trainability:untrainable_reason",
        before="drop_equal and len(rewards) == 1 and None not in rewards",
        after="drop_equal and len(rewards - {None}) == 1",
        tests=(f"{TRAINABILITY}::test_a_group_is_filtered_by_its_failures_and_rewards",),
    ),
    Mutant(
        name="a group is filtered at the last permitted failure",
        target="rljob_runtime.scheduling.trainability:untrainable_reason",
        before="one.failures > max_failures",
        after="one.failures >= max_failures",
        tests=(f"{TRAINABILITY}::test_a_group_is_filtered_by_its_failures_and_rewards",),
    ),
    Mutant(
        name="a lost response whose text failed has no other try",
        target="rljob_runtime.scheduling.round:Round.reward_failed",
        before="int(failure.counts) if sample.state is SampleState.LOST else failure.failures(most)",
        after="failure.failures(most)",
        tests=(f"{ROUND}::test_a_failed_reward_of_a_lost_prompt_counts_in_its_next_race",),
    ),
    Mutant(
        name="what is trained on is chosen by what can be scored",
        target="rljob_runtime.scheduling.reward_failure:RewardFailure.failures",
        before="most + 1 if self.by_response else int(self.counts)",
        after="int(self.counts)",
        tests=(
            "tests/unit/scheduling/test_reward_failure.py::test_how_many_of_three_failures_it_is",
            (
                "tests/unit/coordinator/generation/test_scoring.py::test_a_group_of_which_a_response_cannot_be_"
                "scored_is_given_up[OnPolicy]"
            ),
        ),
    ),
    Mutant(
        name="a long round takes what it likes",
        target="rljob_runtime.scheduling.tail_batching:next_round_of",
        before="min(waiting[name], count)",
        after="0",
        tests=NEXT_ROUND,
    ),
    Mutant(
        name="a job ends with long prompts left",
        target="rljob_runtime.scheduling.tail_batching:next_round",
        before="(rounds_left - 1) * prompts_per_round",
        after="1 << 30",
        tests=NEXT_ROUND,
    ),
    Mutant(
        name="a source queues more than its share",
        target="rljob_runtime.scheduling.tail_batching:_further",
        before="min(room, key=lambda name: Fraction(waiting[name] + more[name] + 1, places[name]))",
        after="room[0]",
        tests=(f"{TAIL_BATCHING}::test_the_next_round_of_two_sources",),
    ),
    Mutant(
        name="the source that is most behind comes next",
        target="rljob_runtime.scheduling.shares:Shares.sequence",
        before="-(-(taken[source] + 1) * total // weights[source])",
        after="taken[source] * total - now * weights[source]",
        tests=("tests/unit/scheduling/test_shares.py",),
    ),
    Mutant(
        name="a source whose groups are all filtered takes every place",
        target="rljob_runtime.scheduling.shares:Shares.replaces",
        before="filtered * self.total",
        after="-1",
        tests=(
            "tests/unit/scheduling/test_shares.py",
            "tests/unit/coordinator/test_sources.py::test_a_source_whose_groups_are_all_filtered_starves_no_other",
        ),
    ),
    Mutant(
        name="counts of former weights go on",
        target="rljob_runtime.scheduling.shares:Shares.counts",
        before="{source.name: source.weight for source in cursor.sources} != self._written",
        after="not cursor.sources",
        tests=("tests/unit/scheduling/test_shares.py::test_other_weights_begin_again",),
    ),
    Mutant(
        name="all sources race for the same places",
        target="rljob_runtime.scheduling.round_samples:Race.is_won",
        before="self.groups",
        after="self.prompts",
        tests=(f"{ROUND}::test_sources_race_for_their_own_places",),
    ),
    Mutant(
        name="a lost weight version's number is used again",
        target="rljob_runtime.scheduling.weight_versions:Versions.next_version",
        before="(entry.version for entry in self.history)",
        after="(entry.version for entry in self.history if not entry.abandoned)",
        tests=("tests/unit/scheduling/test_weight_versions.py",),
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
    ),
    Mutant(
        name="a repeated round is progress of the trainer",
        target="rljob_runtime.scheduling.backoff:TrainerLosses.finish",
        before="step > self.furthest",
        after="True",
        tests=(
            "tests/unit/scheduling/test_backoff.py::test_only_a_round_finished_for_the_first_time_is_trainer_progress",
        ),
    ),
)
