"""Mutants of rljob_runtime.training.step."""

from hack.mutants import Mutant

WORKER = "tests/unit/training/loans/test_worker.py"
EARLY_GRADIENTS = "tests/unit/training/step/test_early_gradients.py"
GRADIENTS = "tests/unit/training/step/test_gradients.py"

MUTANTS = (
    Mutant(
        name="half of the tokens are counted",
        target="rljob_runtime.training.step.contribution:normalise",
        before="gradient.div_(count)",
        after="gradient.div_(count / 2)",
        tests=(
            (
                f"{GRADIENTS}::test_any_split_gives_the_gradient_of_the_naive_"
                "implementation[3-no std, tight clip-float64]"
            ),
        ),
    ),
    Mutant(
        name="only the groups that came late are in the divisor",
        target="rljob_runtime.training.step.contribution:combine",
        before="sums + other.sums",
        after="other.sums",
        tests=(EARLY_GRADIENTS,),
    ),
    Mutant(
        name="overlapping contributions are added",
        target="rljob_runtime.training.step.contribution:combine",
        before="groups & other.groups",
        after="groups - groups",
        tests=(f"{WORKER}::test_what_does_not_belong_here_is_refused_and_changes_nothing",),
    ),
    Mutant(
        name="a contribution is counted twice",
        target="rljob_runtime.training.step.early_gradients:EarlyGradients.missing",
        before="[group for group in groups if group.prompt not in self.groups]",
        after="list(groups)",
        tests=(EARLY_GRADIENTS,),
        canary=True,
    ),
    Mutant(
        name="a worker's count of tokens is believed",
        target="rljob_runtime.training.step.gradients:check_counts",
        before="has != expected",
        after="not has",
        tests=(f"{WORKER}::test_what_does_not_belong_here_is_refused_and_changes_nothing",),
    ),
    Mutant(
        name="a weight carries a gradient",
        target="rljob_runtime.training.step.gradients:GradientComputer._backward",
        before="logprobs.detach()",
        after="logprobs",
        tests=(f"{GRADIENTS}::test_any_split_gives_the_gradient_of_the_naive_implementation[3-weighed-float64]",),
        canary=True,
    ),
    Mutant(
        name="early sums are kept for the next step",
        target="rljob_runtime.training.step.learner:Learner.train",
        before="early, self._early = self._usable_early(step, delivery), None",
        after="early = self._early",
        tests=(EARLY_GRADIENTS,),
    ),
    Mutant(
        name="a step without a loss token moves the weights",
        target="rljob_runtime.training.step.learner:Learner.train",
        before="self.optimizer.update if total.sums.tokens else self.optimizer.skip",
        after="self.optimizer.update",
        tests=(f"{GRADIENTS}::test_a_step_of_masked_responses_only_changes_nothing",),
    ),
    Mutant(
        name="later minibatches forget the weights at the start of the step",
        target="rljob_runtime.training.step.learner:Learner._proximal",
        before="[None, *(self.logprobs(share) for share in shares[1:])]",
        after="[None for _ in shares]",
        tests=(
            ("tests/unit/training/algorithm/test_loss.py::test_later_minibatches_are_held_to_the_weights_at_the_start"),
        ),
    ),
    Mutant(
        name="the KL to the initial model is that of a response",
        target="rljob_runtime.training.step.learner:Learner._report",
        before="total.reference_kl / tokens",
        after="total.reference_kl / max(1, total.sequences)",
        tests=("tests/unit/training/step/test_step_metrics.py",),
    ),
    Mutant(
        name="a job without a reference model reports a KL of 0 to it",
        target="rljob_runtime.training.step.learner:Learner._report",
        before="None if self.reference is None else total.reference_kl / tokens",
        after="total.reference_kl / tokens",
        tests=("tests/unit/training/step/test_step_metrics.py",),
    ),
)
