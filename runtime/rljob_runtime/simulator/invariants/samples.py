"""Samples: each round has one file, with each response at most once, and all that the round was trained on.

An evaluation with a result has one file too, which gives the same average. All is checked when the job has ended. A
store that was lost takes samples along that waited for their file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import isclose
from pathlib import Path
from statistics import mean

from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.samples import EvaluationSampleFolder, LengthFolder, Sample, SampleFolder, SampleOutcome


def sample_faults(folder: Path, store: Store, store_lost: bool, keep: int) -> Iterator[str]:
    """Yield what is wrong with the files of a job that has ended. All of its responses are kept."""
    steps = [step for step in store.boundaries.steps() if step > store.boundaries.steps()[-1] - keep]
    files, lengths = SampleFolder(folder), LengthFolder(folder)
    for name, found in (("samples", files.rounds()), ("lengths", lengths.rounds())):
        if extra := sorted(set(found) - set(steps)):
            yield f"rounds {extra} have {name}, and are not closed"
        if (missing := sorted(set(steps) - set(found))) and not store_lost:
            yield f"rounds {missing} have no {name}"
    if store.samples.due():
        yield f"samples of rounds {store.samples.due()} still wait for their file"
    for step in () if store_lost else sorted(set(lengths.rounds()) & set(steps)):
        ended = Counter((one.kept, one.tokens) for one in store.lengths(step))
        if ended != Counter((row["kept"], tuple(row["output"])) for row in lengths.read(step)):
            yield f"round {step}: its file has other lengths than the store"
    for step in sorted(set(files.rounds()) & set(steps)):
        samples = list(files.read(step))
        twice = [key for key, count in Counter(one.key for one in samples).items() if count > 1]
        if twice or {one.round for one in samples} - {step}:
            yield f"round {step}: its file has {twice} twice, or samples of other rounds"
        trained = Counter((one.prompt_id, one.tokens) for one in samples if one.outcome is SampleOutcome.TRAINED)
        if missing_ones := trained - _complete(store, step):
            yield f"round {step}: its file has samples that were not trained on: {missing_ones}"
        groups = {str(one.prompt) for one in store.lengths(step) if one.kept}
        if groups != {prompt for prompt, _ in trained}:
            yield f"round {step}: it was trained on {sorted(groups)}; its file has other groups"


def evaluation_sample_faults(folder: Path, store: Store, store_lost: bool) -> Iterator[str]:
    """Yield what is wrong with the files of evaluations of a job that has ended. All of their responses are kept."""
    ended: defaultdict[str, dict[int, EvaluationResult]] = defaultdict(dict)
    for result in store.evaluations.results():
        ended[result.name][result.round] = result
    if due := store.evaluations.samples.due():
        yield f"samples of evaluations {due} still wait for their file"
    for name, results in () if store_lost else ended.items():
        files = EvaluationSampleFolder(folder, name)
        if missing := sorted(results.keys() - set(files.rounds())):
            yield f"evaluation {name} has no samples after rounds {missing}"
        if extra := sorted(set(files.rounds()) - {0, *store.boundaries.steps()}):
            yield f"evaluation {name} has samples after rounds {extra}, which are not closed"
        for step in sorted(results.keys() & set(files.rounds())):
            if (fault := _other(results[step], list(files.read(step)))) is not None:
                yield f"evaluation {name} after round {step}: {fault}"


def _other(result: EvaluationResult, samples: list[Sample]) -> str | None:
    """Return how the samples differ from the result."""
    asked = result.prompts * result.responses_per_prompt
    if (count := len({(one.prompt_id, one.sample) for one in samples})) != asked or len(samples) != asked:
        return f"its file has {len(samples)} samples of {count} responses; {asked} were asked for"
    if any(one.round != result.round for one in samples):
        return "its file has samples of other weights"
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for one in samples:
        if one.reward is not None:
            rewards[one.prompt_id].append(one.reward)
    average = mean(map(mean, rewards.values())) if rewards else None
    if (average is None) != (result.average is None) or not isclose(average or 0.0, result.average or 0.0):
        return f"its samples have the average {average}; its result has {result.average}"
    return None


def _complete(store: Store, step: int) -> Counter[tuple[str, int]]:
    return Counter((str(one.prompt), tokens) for one in store.lengths(step) if one.kept for tokens in one.tokens)
