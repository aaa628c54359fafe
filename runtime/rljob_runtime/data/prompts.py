"""Prompts: records of the source, tokenised and drawn in a seeded order by a cursor of two integers."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.spec.training import DataSpec, OnInvalidRecord, Prompts
from rljob_runtime.data.chat_template import ChatTemplate
from rljob_runtime.data.errors import BadRecord, DataError, one_line, too_many
from rljob_runtime.data.held_out import HeldOut
from rljob_runtime.data.order import DrawOrder
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.prompt_cache import PromptCache
from rljob_runtime.data.records import PROMPTS, GymTask, RecordSource, open_dataset, read_file
from rljob_runtime.data.rows import TextOrMessages
from rljob_runtime.models.response_text import TokenizerText
from rljob_runtime.protocols.trajectory import Cursor, PromptKey

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PromptRules:
    """What the prompts of all sources of a job have in common.

    `problem` returns a fault of a tokenised prompt, for example that no reward can score it.
    """

    data: DataSpec
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...] = ()
    problem: Callable[[Prompt], str | None] = lambda prompt: None


class PromptSet:
    """The prompts of one source.

    Records of files are checked when the set is created, those of a generator when they are drawn. With
    `onInvalidRecord: Fail`, a bad record raises `DataError`. With `Skip`, it is skipped and counted.
    """

    def __init__(
        self,
        source: RecordSource,
        rules: PromptRules,
        held_out: HeldOut | None = None,
        name: str = "",
        cache: PromptCache | None = None,
        cached_as: str | None = None,
    ):
        """Create the set, and check its template and the records of a file. `name`: of the source, if it has one.

        `cache` is shared with the job's other sets, which are cached under other names than `cached_as` (absent:
        `name`). Absent: the set has one of its own. Records of `held_out` are never drawn, and neither checked nor
        counted here.
        """
        data, tokenizer = rules.data, rules.tokenizer
        self._source = source
        self._data = data
        self._tokenizer = tokenizer
        self._order = DrawOrder(len(source), data.seed)
        self._stop = rules.stop_token_ids
        self._problem = rules.problem
        self._held_out = held_out
        self._name = name
        self._cached_as = name if cached_as is None else cached_as
        self._skipped: dict[int, BadRecord] = {}
        self._cache = cache if cache is not None else PromptCache()
        if data.system_prompt and not data.chat_template:
            raise DataError("spec.data.systemPrompt needs spec.data.chatTemplate: true")
        self._template = ChatTemplate(tokenizer, data) if data.chat_template else None
        if source.checked_ahead:
            self._check_all()

    @property
    def skipped(self) -> int:
        """Number of records skipped so far."""
        return len(self._skipped)

    @property
    def skipped_records(self) -> tuple[BadRecord, ...]:
        """Records skipped so far, with their faults."""
        return tuple(self._skipped.values())

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end generation."""
        return self._stop

    def draw(self, cursor: Cursor, count: int) -> tuple[tuple[PromptKey, ...], Cursor]:
        """Draw the next `count` prompts and return them with the next cursor.

        It continues into the next epoch.
        """
        drawn: list[PromptKey] = []
        epoch, position = cursor.epoch, cursor.position
        passed_over = 0
        # The only good record may be first in one epoch and last in the next.
        most = 2 * (len(self._source) - 1)
        while len(drawn) < count:
            if position >= len(self._source):
                epoch, position = epoch + 1, 0
            index = self._order.index(epoch, position)
            position += 1
            if self._may_be_drawn(index) and isinstance(self.record_or_fault(index), Prompt):
                drawn.append(PromptKey(epoch, index, self._name))
                passed_over = 0
            elif (passed_over := passed_over + 1) > most:
                raise DataError(
                    f"{self._source.name}: not one record can be used; {next(iter(self._skipped.values()))}"
                )
        return tuple(drawn), Cursor(epoch, position)

    def prompt(self, key: PromptKey) -> Prompt:
        """Return a drawn prompt.

        Raises `DataError` for a key that cannot have been drawn.
        """
        if not 0 <= key.index < len(self._source):
            raise DataError(f"{self._source.name} has no record {key.index}: it has {len(self._source)}")
        if not self._may_be_drawn(key.index):
            raise DataError(f"{self._source.name}: record {key.index} is held out for evaluation")
        found = self.record_or_fault(key.index)
        if isinstance(found, BadRecord):
            raise DataError(f"{self._source.name}: {found}")
        return found

    def messages(self, key: PromptKey) -> tuple[Mapping[str, str], ...]:
        """Return a drawn prompt as chat messages, with the system prompt; text without a template is one message.

        Raises `DataError` as `prompt` does.
        """
        return tuple(self._messages(self.prompt(key).text_or_messages))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode a response to text without special tokens, as rewards receive it."""
        return TokenizerText(self._tokenizer).decode(token_ids)

    def record_or_fault(self, index: int) -> Prompt | BadRecord:
        """Return the prompt of a record, or the fault for which it is skipped. Raises `DataError` if none may be."""
        found = self._prepared(index)
        if isinstance(found, BadRecord):
            if self._data.on_invalid_record is OnInvalidRecord.FAIL:
                raise too_many(self._source.name, [found], len(self._source))
            self._skipped[index] = found
        return found

    def _may_be_drawn(self, index: int) -> bool:
        return self._held_out is None or index not in self._held_out

    def _check_all(self) -> None:
        # Records are checked one at a time: a large data set does not fit into memory.
        prepared = map(self._prepared, filter(self._may_be_drawn, range(len(self._source))))
        bad = [found for found in prepared if isinstance(found, BadRecord)]
        total = len(self._source) - (len(self._held_out) if self._held_out is not None else 0)
        if bad and self._data.on_invalid_record is OnInvalidRecord.FAIL:
            raise too_many(self._source.name, bad, total)
        self._skipped = {each.index: each for each in bad}
        if len(bad) == total:
            raise DataError(f"{self._source.name}: not one of {len(bad)} records can be used; {bad[0]}")

    def _prepared(self, index: int) -> Prompt | BadRecord:
        return self._cache.find(self._cached_as, index, self._prepare)

    def _prepare(self, index: int) -> Prompt | BadRecord:
        record = self._source[index]
        if isinstance(record, BadRecord):
            return record
        if not isinstance(record.text_or_messages, str) and not self._data.chat_template:
            return BadRecord(index, record.where, "chat messages need spec.data.chatTemplate: true")
        try:
            tokens = self._tokens(record.text_or_messages)
        except Exception as error:  # the model's template and tokenizer may raise any error
            part = self._template.name if self._template is not None else "the model's tokenizer"
            return BadRecord(index, record.where, f"{part} refuses it: {one_line(error)}")
        if len(tokens) > self._data.max_prompt_tokens:
            reason = f"{len(tokens)} tokens; spec.data.maxPromptTokens is {self._data.max_prompt_tokens}"
            return BadRecord(index, record.where, reason, len(tokens))
        if not tokens:
            return BadRecord(index, record.where, "no tokens")
        prompt = Prompt(index, record.text_or_messages, tokens, record.answer, record.metadata, self._name)
        if (problem := self._problem(prompt)) is not None:
            return BadRecord(index, record.where, problem)
        return prompt

    def _tokens(self, prompt: TextOrMessages) -> array[int]:
        if self._template is None:
            return array("i", self._tokenizer(prompt)["input_ids"])
        return self._template.tokens(self._messages(prompt))

    def _messages(self, prompt: TextOrMessages) -> list[dict[str, str]]:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if self._data.system_prompt:
            messages.insert(0, {"role": "system", "content": self._data.system_prompt})
        return messages


def open_source(prompts: Prompts, seed: int, cache_dir: Path, field: str = PROMPTS) -> RecordSource:
    """Open the records that a spec names at `field`. Downloads go below `cache_dir`. Raises `DataError`."""
    if prompts.file:
        return read_file(prompts.file, field)
    if prompts.dataset:
        return open_dataset(prompts.dataset, cache_dir, field)
    if prompts.reasoning_gym:
        return GymTask(prompts.reasoning_gym, seed, field)
    raise DataError(f"{field} names no source; one of file, dataset and reasoningGym would be right")
