"""Mutants of rljob_runtime.training.algorithm."""

from hack.mutants import Mutant

LOSS = "tests/unit/training/algorithm/test_loss.py"
OWN = "tests/unit/training/algorithm/test_own.py"
PRESETS = "tests/unit/training/test_presets.py"
GRADIENTS = "tests/unit/training/step/test_gradients.py"
GRADIENT = (
    (f"{GRADIENTS}::test_any_split_gives_the_gradient_of_the_naive_implementation[3-no std, tight clip-float64]"),
)

MUTANTS = (
    Mutant(
        name="advantages are not centred",
        target="rljob_runtime.training.algorithm.advantage:group_advantages",
        before="math.fsum(scaled) / count",
        after="0.0",
        tests=GRADIENT,
    ),
    Mutant(
        name="a response is compared with itself",
        target="rljob_runtime.training.algorithm.advantage:group_advantages",
        before="count / (count - 1) if baseline is AdvantageBaseline.LEAVE_ONE_OUT else 1.0",
        after="1.0",
        tests=(f"{PRESETS}::test_leave_one_out_compares_with_the_others",),
    ),
    Mutant(
        name="large rewards overflow",
        target="rljob_runtime.training.algorithm.advantage:group_advantages",
        before="max(0, math.frexp(max(map(abs, rewards)))[1] - _LARGE_EXPONENT)",
        after="0",
        tests=("tests/unit/training/model/test_packing.py::test_advantages_do_not_depend_on_the_scale_of_rewards",),
    ),
    Mutant(
        name="no weight is cut",
        target="rljob_runtime.training.algorithm.loss:policy_loss",
        before="bounded(batch.proximal - batch.behaviour).exp().clamp(max=config.importance_cap)",
        after="bounded(batch.proximal - batch.behaviour).exp()",
        tests=(
            f"{LOSS}::test_a_token_weighs_its_ratio_up_to_the_cap",
            f"{GRADIENTS}::test_any_split_gives_the_gradient_of_the_naive_implementation[3-weighed-float64]",
        ),
    ),
    Mutant(
        name="weights are cut from below",
        target="rljob_runtime.training.algorithm.loss:policy_loss",
        before="max=config.importance_cap",
        after="min=config.importance_cap",
        tests=(
            f"{LOSS}::test_at_equal_weights_it_is_the_plain_loss",
            f"{GRADIENTS}::test_any_split_gives_the_gradient_of_the_naive_implementation[3-weighed-float64]",
        ),
    ),
    Mutant(
        name="the sampler's logprobs are the trainer's, recomputed",
        target="rljob_runtime.training.algorithm.loss:policy_loss",
        before="batch.proximal - batch.behaviour",
        after="batch.proximal - batch.proximal",
        tests=(
            f"{LOSS}::test_a_token_weighs_its_ratio_up_to_the_cap",
            f"{GRADIENTS}::test_any_split_gives_the_gradient_of_the_naive_implementation[3-weighed-float64]",
        ),
    ),
    Mutant(
        name="the overlong penalty begins at the limit",
        target="rljob_runtime.training.algorithm.overlong:overlong_penalty",
        before="limit - window",
        after="limit",
        tests=(f"{PRESETS}::test_the_penalty_of_a_length",),
    ),
    Mutant(
        name="a loss that is no number is trained on",
        target="rljob_runtime.training.algorithm.own:OwnLoss._check_sum",
        before="not bool(total.detach().isfinite())",
        after="False",
        tests=(f"{OWN}::test_a_wrong_loss_is_refused_and_no_weight_changes",),
    ),
    Mutant(
        name="a loss for each token is summed as it comes",
        target="rljob_runtime.training.algorithm.own:OwnLoss._check_sum",
        before="total.shape != torch.Size([])",
        after="False",
        tests=(f"{OWN}::test_a_wrong_loss_is_refused_and_no_weight_changes",),
    ),
    Mutant(
        name="advantages of the user go unchecked",
        target="rljob_runtime.training.algorithm.own:OwnAdvantage.__call__",
        before="len(values) != len(group.rewards) or not all(map(math.isfinite, values))",
        after="len(values) != len(group.rewards)",
        tests=(f"{OWN}::test_wrong_advantages_are_refused",),
    ),
    Mutant(
        name="ratios are not clipped from above",
        target="rljob_runtime.training.algorithm.parts:clipped_objective",
        before="ratio.clamp(1 - low, 1 + high)",
        after="ratio.clamp(min=1 - low)",
        tests=GRADIENT,
    ),
    Mutant(
        name="a clipped weight carries a gradient",
        target="rljob_runtime.training.algorithm.parts:weighted_objective",
        before="ratio.detach()",
        after="ratio",
        tests=(f"{PRESETS}::test_the_gradient_is_the_papers",),
    ),
    Mutant(
        name="a response's ratio is the product of its tokens'",
        target="rljob_runtime.training.algorithm.parts:mean_of_response",
        before="per_response(values, responses, sequences) / lengths",
        after="per_response(values, responses, sequences)",
        tests=(f"{PRESETS}::test_the_gradient_is_the_papers",),
    ),
    Mutant(
        name="tokens below the clip are counted above it",
        target="rljob_runtime.training.algorithm.parts:clipped_objective",
        before=(
            "Objective(torch.minimum(ratio * advantages, held * advantages), cut & (ratio < held), cut & "
            "(ratio > held))"
        ),
        after=(
            "Objective(torch.minimum(ratio * advantages, held * advantages), cut & (ratio > held), cut & "
            "(ratio < held))"
        ),
        tests=(f"{PRESETS}::test_loss_gradient_and_clip_fractions_are_trls",),
    ),
    Mutant(
        name="KL in the reward charges what came before a token",
        target="rljob_runtime.training.algorithm.parts:rest_of_response",
        before="ends[responses] - wide.cumsum(0) + wide",
        after="ends[responses] - wide.cumsum(0)",
        tests=(f"{PRESETS}::test_kl_in_the_reward_lowers_each_token_by_what_its_rest_costs",),
    ),
    Mutant(
        name="a metric that one part lacks is lost",
        target="rljob_runtime.training.algorithm.sums:LossSums.__add__",
        before="{**own, **others}",
        after="own",
        tests=(f"{PRESETS}::test_metrics_of_parts_add_up_in_any_split",),
    ),
)
