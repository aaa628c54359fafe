"""Job prompts: the prompts of training and of each evaluation, opened together and found by their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.spec.training import DataSpec, Prompts
from rljob_runtime.data.environments import environment_of, or_unknown_environment, record_of
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.evaluation_prompts import EvaluationPrompts, OnAccess, Overlap, Part, in_seeded_order
from rljob_runtime.data.held_out import HeldOut
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.prompt_cache import PromptCache
from rljob_runtime.data.prompt_sets import PromptSets
from rljob_runtime.data.prompts import PromptRules, PromptSet, open_source
from rljob_runtime.data.records import PROMPTS
from rljob_runtime.models.errors import ModelError
from rljob_runtime.models.stop_tokens import stop_token_ids
from rljob_runtime.protocols.trajectory import EVALUATION_SOURCE, Cursor, PromptKey

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rljob_runtime.data.records import RecordSource

EVALUATION_SEEDS = 0xFFFF_FFFE << 32
"""Added to the seed of a generator for an evaluation: a generator makes record n from seed + n. Seeds of training are
below. The upper half is large because `random.Random` treats (n - 1) * 2**32 + n as n."""


@dataclass(frozen=True)
class EvaluationData:
    """The prompts of an evaluation, as the spec names them.

    `field` is its place in the spec. `prompts` is its own source; None for the records that `data.heldOut` keeps from
    training. `most`: prompts at most.
    """

    field: str
    name: str
    prompts: Prompts | None
    most: int
    drawn: Sequence[str] = ()
    """With held-out records of named sources: the source of each prompt, at most `most`."""
    own_rewards: bool = True
    """Whether it names its rewards. Else held-out records have those of their source."""


class JobPrompts:
    """The prompts of a job.

    The key of an evaluation's prompt has the source `evaluation:NAME`. Any other key is one of training.
    """

    def __init__(
        self,
        training: PromptSets,
        evaluations: Mapping[str, EvaluationPrompts],
        overlaps: Mapping[str, int],
        environments: Sequence[str] = (),
    ) -> None:
        """`environments`: the names of the job's environments. Each prompt names one of them, or none."""
        self._training = training
        self._environments = environments
        self._evaluations = evaluations
        self.overlaps = overlaps
        """Evaluation prompts with the tokens of a training record, by evaluation, where there are some."""

    @property
    def skipped(self) -> int:
        """Number of training records skipped so far."""
        return self._training.skipped

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end generation."""
        return self._training.stop_token_ids

    def draw(self, cursor: Cursor, count: int, source: str = "") -> tuple[tuple[PromptKey, ...], Cursor]:
        """Draw prompts of a source for training."""
        return self._training.draw(cursor, count, source)

    def evaluation_prompts(self, name: str) -> Sequence[int]:
        """Return the numbers of the records of an evaluation's prompts. Raises `DataError` for an unknown one."""
        return self._evaluation(name).records

    def prompt(self, key: PromptKey) -> Prompt:
        """Return a prompt of training or of an evaluation. Raises `DataError` for a key that names none."""
        if (name := key.evaluation) is None:
            return self._training.prompt(key)
        return self._evaluation(name).prompt(key.index)

    def messages(self, key: PromptKey) -> tuple[Mapping[str, str], ...]:
        """Return a prompt as chat messages. Raises `DataError` as `prompt` does."""
        if (name := key.evaluation) is None:
            return self._training.messages(key)
        return self._evaluation(name).messages(key.index)

    def environment(self, key: PromptKey) -> str:
        """Return the environment of a prompt in a job with environments. Raises `DataError` as `prompt` does."""
        return environment_of(self.prompt(key), self._environments)

    def record(self, key: PromptKey) -> dict[str, object]:
        """Return a prompt's record as JSON values. Raises `DataError` as `prompt` does."""
        return record_of(self.prompt(key))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode a response to text without special tokens, as rewards receive it."""
        return self._training.decode(token_ids)

    def _evaluation(self, name: str) -> EvaluationPrompts:
        try:
            return self._evaluations[name]
        except KeyError:
            raise DataError(f"there is no evaluation {name!r}") from None


def tokenizer_folder(scratch: Path) -> Path:
    """Return the folder to which `open_prompts` writes the model's tokenizer and config."""
    return scratch / "tokenizer"


def open_prompts(
    data: DataSpec,
    model_files: Mapping[str, bytes],
    scratch: Path,
    problem: Callable[[Prompt], str | None] = lambda prompt: None,
    held_out: float | None = None,
    evaluations: Sequence[EvaluationData] = (),
    environments: Sequence[str] = (),
) -> JobPrompts:
    """Open the prompts of a job with the tokenizer in `model_files`, which are written to `scratch`.

    `problem` is passed to each `PromptSet`. `held_out` is the fraction of each source's records that training never
    draws. A record that names none of `environments`, but another one, is a bad record. Raises `DataError`.
    """
    problem = or_unknown_environment(environments, problem)
    tokenizer, stop = _tokenizer(model_files, tokenizer_folder(scratch), data.stop_strings)
    sources = {
        name: open_source(prompts, data.seed, scratch, _field(index, name))
        for index, (name, prompts) in enumerate(data.prompts_of.items())
    }
    kept: dict[str, HeldOut] = {}
    if held_out is not None:
        kept = {name: HeldOut(one.name, len(one), held_out, data.seed) for name, one in sources.items()}
    cache, rules = PromptCache(), PromptRules(data, tokenizer, tuple(stop), problem)
    opened: dict[str, EvaluationPrompts] = {}
    for each in evaluations:
        parts = [
            Part(PromptSet(OnAccess(one.records), rules, None, one.name, cache, key), one.order)
            for key, one in _candidates(each, data, scratch, sources, kept).items()
        ]
        names = list(sources)
        places = [names.index(name) for name in each.drawn] if len(parts) > 1 else [0] * each.most
        opened[each.name] = EvaluationPrompts(parts, places, f"{each.field} {each.name}")
    overlap = Overlap(opened)
    watching = overlap.watching(problem)
    watched = replace(rules, problem=watching)
    training = {name: PromptSet(one, watched, kept.get(name), name, cache) for name, one in sources.items()}
    return JobPrompts(PromptSets(training), opened, overlap.counts(), environments)


def _field(index: int, name: str) -> str:
    """Return the place of a source in the spec."""
    return f"spec.data.sources[{index}].prompts" if name else PROMPTS


@dataclass(frozen=True)
class _Candidates:
    """The records of a source that an evaluation may take, in `order`. `name`: its rewards are those of this source."""

    name: str
    records: RecordSource
    order: Iterable[int]


def _candidates(
    evaluation: EvaluationData,
    data: DataSpec,
    scratch: Path,
    training: Mapping[str, RecordSource],
    held_out: Mapping[str, HeldOut],
) -> dict[str, _Candidates]:
    """Return the sources of an evaluation by a unique name: its own, or all of training for held-out records."""
    name = EVALUATION_SOURCE + evaluation.name
    if evaluation.prompts is None:
        if not held_out:
            raise DataError(f"{evaluation.field}.prompts.heldOut needs spec.data.heldOut, e.g. {{fraction: 0.05}}")
        return {
            f"{name}/{source}": _Candidates(
                name if evaluation.own_rewards or not source else source, records, held_out[source]
            )
            for source, records in training.items()
        }
    own = open_source(evaluation.prompts, data.seed + EVALUATION_SEEDS, scratch, f"{evaluation.field}.prompts")
    return {name: _Candidates(name, own, in_seeded_order(len(own), data.seed))}


def _tokenizer(
    model_files: Mapping[str, bytes], folder: Path, stop_strings: Sequence[str]
) -> tuple[PreTrainedTokenizerBase, tuple[int, ...]]:
    """Return the model's tokenizer and the tokens that end generation. The files are written to `folder`."""
    from transformers import AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in model_files.items():
        (folder / name).write_bytes(raw)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    try:
        return tokenizer, stop_token_ids(model_files, tokenizer, stop_strings)
    except ModelError as error:
        raise DataError(str(error)) from error
