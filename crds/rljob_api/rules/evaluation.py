"""Evaluation rules: those of `spec.evaluation` with other fields."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.errors import FieldError
from rljob_api.rules.sources import check_prompts, check_rules
from rljob_api.spec import RLJobSpec
from rljob_api.spec.evaluation import EvaluationPrompts

Errors = Iterator[FieldError]

MAX_RESPONSES_PER_EVALUATION = 1 << 16


def check_evaluation(spec: RLJobSpec) -> Errors:
    """Yield the mistakes of the evaluations."""
    names = [evaluation.name for evaluation in spec.evaluation]
    keep_best = spec.checkpoint.keep_best
    if keep_best is not None and keep_best.evaluation not in names:
        advice = f"must be an evaluation of spec.evaluation: {', '.join(names) or 'there is none'}"
        yield FieldError("spec.checkpoint.keepBest.evaluation", keep_best.evaluation, advice)
    for index, evaluation in enumerate(spec.evaluation):
        path = f"spec.evaluation[{index}]"
        if evaluation.name in names[:index]:
            yield FieldError(f"{path}.name", evaluation.name, "must be unique in spec.evaluation")
        yield from check_prompts(f"{path}.prompts", evaluation.prompts)
        yield from check_rules(f"{path}.rewards", evaluation.rewards, evaluation.prompts, spec)
        if evaluation.prompts.held_out and spec.data.held_out is None:
            yield FieldError(f"{path}.prompts.heldOut", True, "needs spec.data.heldOut, e.g. {fraction: 0.05}")
        yield from _source(path, evaluation.prompts, spec)
        responses = evaluation.max_prompts * evaluation.responses_per_prompt
        if responses > MAX_RESPONSES_PER_EVALUATION:
            most = MAX_RESPONSES_PER_EVALUATION // evaluation.responses_per_prompt
            advice = f"must be at most {most}: an evaluation has at most {MAX_RESPONSES_PER_EVALUATION} responses"
            yield FieldError(f"{path}.maxPrompts", evaluation.max_prompts, advice)
        longest, most = evaluation.sampling.max_response_tokens, spec.data.max_response_tokens
        if longest is not None and longest > most:
            advice = f"must be at most data.maxResponseTokens ({most})"
            yield FieldError(f"{path}.sampling.maxResponseTokens", longest, advice)


def _source(path: str, prompts: EvaluationPrompts, spec: RLJobSpec) -> Errors:
    """Check that `prompts.source` is the name of a source whose records are held out."""
    if prompts.source is None:
        return
    names = [source.name for source in spec.data.sources or ()]
    if not prompts.held_out:
        yield FieldError(f"{path}.prompts.source", prompts.source, "needs heldOut: true; else leave it out")
    elif prompts.source not in names:
        advice = f"must be the name of a source in spec.data.sources: {', '.join(names) or 'there is none'}"
        yield FieldError(f"{path}.prompts.source", prompts.source, advice)
