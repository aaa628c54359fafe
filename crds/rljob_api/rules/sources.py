"""Rules of prompt sources: what each has, and that their shares add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rljob_api.errors import ABSENT, FieldError
from rljob_api.spec import RLJobSpec
from rljob_api.spec.evaluation import EvaluationPrompts
from rljob_api.spec.rewards import RewardKind
from rljob_api.spec.training import DataSource, Prompts

Errors = Iterator[FieldError]


def check_sources(spec: RLJobSpec) -> Errors:
    """Yield the mistakes of `spec.data.prompts` and `spec.data.sources`."""
    prompts, sources = spec.data.prompts, spec.data.sources
    if prompts is None and sources is None:
        yield FieldError("spec.data.prompts", ABSENT, "is required: the source of the prompts; or several in sources")
    if prompts is not None:
        yield from check_prompts("spec.data.prompts", prompts)
    if sources is None:
        return
    if prompts is not None:
        names = ", ".join(source.name for source in sources)
        yield FieldError("spec.data.sources", names, "excludes spec.data.prompts; leave one of them out")
    names_before: list[str] = []
    for index, source in enumerate(sources):
        path = f"spec.data.sources[{index}]"
        if source.name in names_before:
            yield FieldError(f"{path}.name", source.name, "must be unique in spec.data.sources")
        names_before.append(source.name)
        yield from check_prompts(f"{path}.prompts", source.prompts)
        yield from _share(path, source, by_weight=sources[0].weight is not None)
        yield from check_rules(f"{path}.rewards", source.rewards, source.prompts, spec)
    yield from _sum(spec, sources)


def _share(path: str, source: DataSource, by_weight: bool) -> Errors:
    """Check that a source has one of weight and promptsPerRound: the one that the first source has."""
    if source.weight is None and source.prompts_per_round is None:
        field = "weight" if by_weight else "promptsPerRound"
        yield FieldError(f"{path}.{field}", ABSENT, "is required: the share of this source; all have the same field")
    elif source.weight is not None and source.prompts_per_round is not None:
        yield FieldError(f"{path}.promptsPerRound", source.prompts_per_round, "excludes weight; leave one of them out")
    elif (source.weight is not None) is not by_weight:
        field, value = ("weight", source.weight) if not by_weight else ("promptsPerRound", source.prompts_per_round)
        other = "weight" if by_weight else "promptsPerRound"
        yield FieldError(f"{path}.{field}", value, f"must be {other}, as in the first source: all have the same field")


def check_prompts(path: str, prompts: Prompts) -> Errors:
    """Yield a mistake unless `prompts` names one source."""
    kinds = {"file": "file", "dataset": "dataset", "reasoningGym": "reasoning_gym"}
    if isinstance(prompts, EvaluationPrompts):
        kinds["heldOut"] = "held_out"
    given = [name for name, field in kinds.items() if getattr(prompts, field)]
    if len(given) != 1:
        *others, last = kinds
        advice = f"must name exactly one source: {', '.join(others)} or {last}"
        yield FieldError(path, ", ".join(given) or ABSENT, advice)


def check_rules(path: str, named: Sequence[str] | None, prompts: Prompts, spec: RLJobSpec) -> Errors:
    """Check the names of the rules that score the responses to these prompts; None for all rules."""
    known = [reward.name for reward in spec.rewards]
    unknown = [name for name in named or () if name not in known]
    for name in unknown:
        index = list(named or ()).index(name)
        yield FieldError(f"{path}[{index}]", name, f"must be the name of a rule in spec.rewards: {', '.join(known)}")
    rules = [reward for reward in spec.rewards if named is None or reward.name in named]
    shown = list(named) if named is not None else ABSENT
    if spec.rewards and not unknown and all(rule.weight == 0 for rule in rules):
        yield FieldError(path, shown, "must hold a rule with a weight other than 0: every reward would be 0")
    gym = [rule.name for rule in rules if rule.kind is RewardKind.REASONING_GYM]
    if gym and prompts.kinds and prompts.reasoning_gym is None:
        advice = f"must leave out {', '.join(gym)}: kind ReasoningGym needs prompts from reasoningGym"
        yield FieldError(path, shown, advice)


def _sum(spec: RLJobSpec, sources: tuple[DataSource, ...]) -> Errors:
    counts = [source.prompts_per_round for source in sources]
    given = [count for count in counts if count is not None]
    total, wanted = sum(given), spec.algorithm.prompts_per_round
    if len(given) == len(counts) and total != wanted and all(source.weight is None for source in sources):
        advice = f"must add up to algorithm.promptsPerRound ({wanted}) over all sources; they add up to {total}"
        yield FieldError("spec.data.sources[0].promptsPerRound", counts[0], advice)
