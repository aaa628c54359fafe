"""Mutants of rljob_operator.policies.scaling."""

from hack.mutants import Mutant

MARGINAL_GAIN = "tests/unit/operator/policies/scaling/test_marginal_gain.py"
AUTOSCALER = "tests/unit/operator/policies/scaling/test_autoscaler.py"
RUNNER_POOLS = "tests/unit/operator/policies/scaling/test_runner_pools.py"
PARALLELISM_PLANNER = "tests/unit/operator/policies/scaling/test_parallelism_planner.py"

MUTANTS = (
    Mutant(
        name="runners go after one round that needs fewer",
        target="rljob_operator.policies.scaling.runner_pools:_wanted",
        before="len(needed) < ROUNDS",
        after="False",
        tests=(RUNNER_POOLS,),
    ),
    Mutant(
        name="episodes wait for four rounds before they get runners",
        target="rljob_operator.policies.scaling.runner_pools:_wanted",
        before="max(pool.runners, needed[-1])",
        after="pool.runners",
        tests=(RUNNER_POOLS,),
    ),
    Mutant(
        name="runners are added for an evaluation that has ended",
        target="rljob_operator.policies.scaling.runner_pools:_of_training",
        before="load.most_open if load.most_training is None else load.most_training",
        after="load.most_open",
        tests=(f"{RUNNER_POOLS}::test_evaluations_use_the_runners_of_training",),
    ),
    Mutant(
        name="a machine goes though the others cannot do its work",
        target="rljob_operator.policies.scaling.autoscaler:_by_waits",
        before="flooding > FLOODING and busy * SPARE <= memory.machines - 1",
        after="flooding > FLOODING",
        tests=(AUTOSCALER,),
    ),
    Mutant(
        name="updates without all machines count",
        target="rljob_operator.policies.scaling.autoscaler:_learned",
        before="figures is None or again or not complete",
        after="figures is None or again",
        tests=(AUTOSCALER,),
    ),
    Mutant(
        name="steps follow each other without a rest",
        target="rljob_operator.policies.scaling.autoscaler:desired_machines",
        before="max(len(memory.starving), len(memory.brought)) < UPDATES",
        after="max(len(memory.starving), len(memory.brought)) < 1",
        tests=(AUTOSCALER,),
    ),
    Mutant(
        name="a step back rests on four rounds",
        target="rljob_operator.policies.scaling.autoscaler:_by_shares",
        before="step == 0 or step != -memory.direction",
        after="True",
        tests=(MARGINAL_GAIN,),
    ),
    Mutant(
        name="the number of machines is not bounded",
        target="rljob_operator.policies.scaling.autoscaler:desired_machines",
        before="step == 0 or not spec.rollout.smallest <= count <= spec.rollout.largest",
        after="step == 0",
        tests=(AUTOSCALER,),
    ),
    Mutant(
        name="an update counts twice",
        target="rljob_operator.policies.scaling.autoscaler:desired_machines",
        before="last is None or last.round == memory.round",
        after="last is None",
        tests=(AUTOSCALER,),
    ),
    Mutant(
        name="trainer and replicas that wait by turns get machines",
        target="rljob_operator.policies.scaling.autoscaler:_by_waits",
        before="starving > STARVING and flooding > FLOODING",
        after="False",
        tests=(AUTOSCALER,),
    ),
    Mutant(
        name="fewer machines than are asked for are a measure of them",
        target="rljob_operator.policies.scaling.autoscaler:desired_machines_of_job",
        before="not missing and not fewer and (report.applied or 0) >= target.revision > 0",
        after="not missing and (report.applied or 0) >= target.revision > 0",
        tests=(
            (
                "tests/unit/operator/policies/kueue/test_quota.py::test_figures_of_fewer_machines_than_asked_for_"
                "are_no_measure"
            ),
        ),
    ),
    Mutant(
        name="a share is taken of one machine too many",
        target="rljob_operator.policies.scaling.marginal_gain:measure",
        before="machines - 1 + trainer",
        after="machines + trainer",
        tests=(f"{MARGINAL_GAIN}::test_what_machines_bring",),
    ),
    Mutant(
        name="a trainer that stands still costs nothing",
        target="rljob_operator.policies.scaling.marginal_gain:measure",
        before="machines + trainer",
        after="machines",
        tests=(f"{MARGINAL_GAIN}::test_what_machines_bring",),
    ),
    Mutant(
        name="one machine more is wanted whatever it brings",
        target="rljob_operator.policies.scaling.marginal_gain:choose_step",
        before="another >= WORTH",
        after="another > 0",
        tests=(f"{MARGINAL_GAIN}::test_a_machine_is_worth_what_it_brings_of_its_share",),
    ),
    Mutant(
        name="one kind of round teaches the other",
        target="rljob_operator.policies.scaling.parallelism_planner:choose_tp",
        before='"short" if last.kind is RoundKind.SHORT else "long"',
        after='"long"',
        tests=(PARALLELISM_PLANNER,),
    ),
    Mutant(
        name="a round from before the target counts",
        target="rljob_operator.policies.scaling.parallelism_planner:choose_tp",
        before="last.tensor_parallel_size == size",
        after="True",
        tests=(PARALLELISM_PLANNER,),
    ),
    Mutant(
        name="a step down that failed is tried again",
        target="rljob_operator.policies.scaling.parallelism_planner:_judge",
        before="history.stepped_down",
        after="False",
        tests=(PARALLELISM_PLANNER,),
    ),
    Mutant(
        name="a size that engines refuse stays the target",
        target="rljob_operator.policies.scaling.parallelism_planner:choose_tp",
        before="last.round > heard",
        after="last.round < heard",
        tests=(f"{PARALLELISM_PLANNER}::test_a_refused_size_is_left_and_not_tried_again_for_a_while",),
    ),
    Mutant(
        name="a size that engines refused is tried again immediately",
        target="rljob_operator.policies.scaling.parallelism_planner:_refused_lately",
        before="(history.ceiling_round or 0) + REFUSED_ROUNDS",
        after="history.ceiling_round or 0",
        tests=(f"{PARALLELISM_PLANNER}::test_a_refused_size_is_left_and_not_tried_again_for_a_while",),
    ),
    Mutant(
        name="a step is made to a slower size",
        target="rljob_operator.policies.scaling.parallelism_planner:_slower",
        before="other in seconds and size in seconds and seconds[other] >= seconds[size]",
        after="False",
        tests=(f"{PARALLELISM_PLANNER}::test_predicted_seconds_have_the_last_word",),
    ),
    Mutant(
        name="a faster size is not taken",
        target="rljob_operator.policies.scaling.parallelism_planner:_is_worth",
        before="seconds[faster] <= CLEARLY * seconds[size]",
        after="False",
        tests=(f"{PARALLELISM_PLANNER}::test_predicted_seconds_have_the_last_word",),
    ),
    Mutant(
        name="one prediction of a slight gain is believed",
        target="rljob_operator.policies.scaling.parallelism_planner:_is_worth",
        before="history.faster_rounds >= needed",
        after="True",
        tests=(f"{PARALLELISM_PLANNER}::test_a_slightly_faster_size_is_chosen_after_four_rounds",),
    ),
    Mutant(
        name="a smaller gain needs no more rounds",
        target="rljob_operator.policies.scaling.parallelism_planner:_is_worth",
        before="max(1.0, SLIGHT * seconds[size] / saved)",
        after="1.0",
        tests=(f"{PARALLELISM_PLANNER}::test_a_slightly_faster_size_is_chosen_after_four_rounds",),
    ),
    Mutant(
        name="a slight gain is taken in the last rounds",
        target="rljob_operator.policies.scaling.parallelism_planner:_is_worth",
        before="saved * left >= seconds[size]",
        after="True",
        tests=(f"{PARALLELISM_PLANNER}::test_a_slightly_faster_size_must_repay_a_round",),
    ),
    Mutant(
        name="rounds with another fastest size count as in a row",
        target="rljob_operator.policies.scaling.parallelism_planner:_count_faster",
        before="history.faster == best",
        after="True",
        tests=(f"{PARALLELISM_PLANNER}::test_a_slightly_faster_size_is_chosen_after_four_rounds",),
    ),
)
