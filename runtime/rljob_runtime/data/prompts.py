"""Prompts: records of the source, tokenised and drawn in a seeded order by a cursor of two integers."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.spec_training import DataSpec, OnInvalidRecord, Prompts
from rljob_runtime.data.errors import BadRecord, DataError, one_line, too_many
from rljob_runtime.data.order import DrawOrder
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.prompt_cache import PromptCache
from rljob_runtime.data.records import GymTask, RecordSource, open_dataset, read_file
from rljob_runtime.data.rows import TextOrMessages
from rljob_runtime.models.errors import ModelError
from rljob_runtime.models.stop_tokens import stop_token_ids
from rljob_runtime.protocols.trajectory import Cursor, PromptKey

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptSet:
    """Implements `rljob_runtime.protocols.PromptSource`.

    Records of files are checked when the set is created, those of a generator when they are drawn. With
    `onInvalidRecord: Fail`, a bad record raises `DataError`. With `Skip`, it is skipped and counted.
    """

    def __init__(
        self,
        source: RecordSource,
        data: DataSpec,
        tokenizer: PreTrainedTokenizerBase,
        stop_token_ids: Sequence[int] = (),
        problem: Callable[[Prompt], str | None] = lambda prompt: None,
    ):
        """Create the set, and check its template and the records of a file.

        `problem` returns a fault of a tokenised prompt, for example that no reward can score it.
        """
        self._source = source
        self._data = data
        self._tokenizer = tokenizer
        self._order = DrawOrder(len(source), data.seed)
        self._stop = tuple(stop_token_ids)
        self._problem = problem
        self._skipped: dict[int, BadRecord] = {}
        self._prepared = PromptCache(self._prepare)
        self._check_template()
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
            if isinstance(self._record_or_fault(index), Prompt):
                drawn.append(PromptKey(epoch, index))
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
        found = self._record_or_fault(key.index)
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
        text: Any = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return str(text)

    def _record_or_fault(self, index: int) -> Prompt | BadRecord:
        found = self._prepared(index)
        if isinstance(found, BadRecord):
            if self._data.on_invalid_record is OnInvalidRecord.FAIL:
                raise too_many(self._source.name, [found], len(self._source))
            self._skipped[index] = found
        return found

    def _check_all(self) -> None:
        # Records are checked one at a time: a large data set does not fit into memory.
        prepared = map(self._prepared, range(len(self._source)))
        bad = [found for found in prepared if isinstance(found, BadRecord)]
        if bad and self._data.on_invalid_record is OnInvalidRecord.FAIL:
            raise too_many(self._source.name, bad, len(self._source))
        self._skipped = {each.index: each for each in bad}
        if len(bad) == len(self._source):
            raise DataError(f"{self._source.name}: not one of {len(bad)} records can be used; {bad[0]}")

    def _check_template(self) -> None:
        if self._data.chat_template and not getattr(self._tokenizer, "chat_template", None):
            raise DataError("the model's tokenizer has no chat template; set spec.data.chatTemplate: false")
        if self._data.system_prompt and not self._data.chat_template:
            raise DataError("spec.data.systemPrompt needs spec.data.chatTemplate: true")
        if self._data.system_prompt and (refusal := self._refusal(self._data.system_prompt)) is not None:
            advice = "leave it out, and put its text into the prompts"
            raise DataError(f"spec.data.systemPrompt: the model's chat template takes none ({refusal}); {advice}")

    def _refusal(self, system_prompt: str) -> str | None:
        """Return the template's error for a system prompt before a user message.

        None when the template refuses a user message alone.
        """
        user = {"role": "user", "content": "1"}
        for messages in ([user], [{"role": "system", "content": system_prompt}, user]):
            try:
                self._templated(messages)
            except Exception as error:  # a template may raise any error
                return None if messages == [user] else str(error)
        return None

    def _prepare(self, index: int) -> Prompt | BadRecord:
        record = self._source[index]
        if isinstance(record, BadRecord):
            return record
        if not isinstance(record.text_or_messages, str) and not self._data.chat_template:
            return BadRecord(index, record.where, "chat messages need spec.data.chatTemplate: true")
        try:
            tokens = self._tokens(record.text_or_messages)
        except Exception as error:  # the model's template and tokenizer may raise any error
            return BadRecord(index, record.where, f"the model's {self._refusing_part} refuses it: {one_line(error)}")
        if len(tokens) > self._data.max_prompt_tokens:
            reason = f"{len(tokens)} tokens; spec.data.maxPromptTokens is {self._data.max_prompt_tokens}"
            return BadRecord(index, record.where, reason, len(tokens))
        if not tokens:
            return BadRecord(index, record.where, "no tokens")
        prompt = Prompt(index, record.text_or_messages, tokens, record.answer, record.metadata)
        if (problem := self._problem(prompt)) is not None:
            return BadRecord(index, record.where, f"{problem}; repair its answer")
        return prompt

    @property
    def _refusing_part(self) -> str:
        return "chat template" if self._data.chat_template else "tokenizer"

    def _tokens(self, prompt: TextOrMessages) -> array[int]:
        if not self._data.chat_template:
            return array("i", self._tokenizer(prompt)["input_ids"])
        return self._templated(self._messages(prompt))

    def _messages(self, prompt: TextOrMessages) -> list[dict[str, str]]:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if self._data.system_prompt:
            messages.insert(0, {"role": "system", "content": self._data.system_prompt})
        return messages

    def _templated(self, messages: list[dict[str, str]]) -> array[int]:
        tokens: Any = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return array("i", tokens)


def open_source(prompts: Prompts, seed: int, cache_dir: Path) -> RecordSource:
    """Open the records that a spec names. Downloads go below `cache_dir`. Raises `DataError`."""
    if prompts.file:
        return read_file(prompts.file)
    if prompts.dataset:
        return open_dataset(prompts.dataset, cache_dir)
    if prompts.reasoning_gym:
        return GymTask(prompts.reasoning_gym, seed)
    raise DataError("spec.data.prompts names no source; one of file, dataset and reasoningGym would be right")


def open_prompts(
    data: DataSpec,
    model_files: Mapping[str, bytes],
    scratch: Path,
    problem: Callable[[Prompt], str | None] = lambda prompt: None,
) -> PromptSet:
    """Open the prompts of a job with the tokenizer in `model_files`, which are written to `scratch`.

    `problem` is passed to `PromptSet`. Raises `DataError`.
    """
    from transformers import AutoTokenizer

    folder = scratch / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in model_files.items():
        (folder / name).write_bytes(raw)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    try:
        stop = stop_token_ids(model_files, tokenizer)
    except ModelError as error:
        raise DataError(str(error)) from error
    return PromptSet(open_source(data.prompts, data.seed, scratch), data, tokenizer, stop, problem)
