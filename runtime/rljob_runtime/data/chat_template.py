"""Chat template: how messages become tokens, and whether the template takes what the spec gives to it.

The template is the model's, or that of `spec.data.chatTemplateFile`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateSyntaxError, meta

from rljob_api.spec.training import DataSpec
from rljob_runtime.data.errors import DataError, one_line
from rljob_runtime.data.records import local_path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIELD = "spec.data.chatTemplateFile"
GIVEN = frozenset({"messages", "add_generation_prompt"})
"""Variables that every template is given, besides the names of special tokens."""


class ChatTemplate:
    """The chat template of a job, with its arguments."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, data: DataSpec) -> None:
        """Read the template. Raises `DataError` for one that cannot be used, or that does not fit the spec."""
        self._tokenizer = tokenizer
        self._arguments = dict(data.chat_template_arguments or {})
        if data.chat_template_file is None:
            self.name = "the model's chat template"
            if not getattr(tokenizer, "chat_template", None):
                advice = f"set spec.data.chatTemplate: false, or give one in {FIELD}"
                raise DataError(f"the model's tokenizer has no chat template; {advice}")
            self._source = self._chosen()
        else:
            self.name = f"the chat template {data.chat_template_file}"
            self._source = _read(data.chat_template_file)
        self._check_arguments()
        if data.system_prompt:
            self._check_system_prompt(data.system_prompt)

    def tokens(self, messages: Sequence[Mapping[str, str]]) -> array[int]:
        """Return the tokens of a chat, up to where the response begins. Raises whatever the template raises."""
        tokens: Any = self._apply(messages, tokenize=True)
        return array("i", tokens)

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        generation_prompt: bool = True,
    ) -> str:
        """Return the text of a chat. Raises whatever the template raises."""
        given: dict[str, Any] = {"tools": [dict(tool) for tool in tools]} if tools else {}
        return str(self._apply(messages, tokenize=False, add_generation_prompt=generation_prompt, **given))

    def _chosen(self) -> str:
        """Return the template that the tokenizer takes. Raises `DataError` if it has several and no default."""
        try:
            return str(self._tokenizer.get_chat_template(tools=self._arguments.get("tools")))
        except ValueError as error:
            names = ", ".join(sorted(self._tokenizer.chat_template or ()))
            advice = f"give the right one in {FIELD}"
            message = f"the model's tokenizer has several chat templates ({names}), and none named default; {advice}"
            raise DataError(message) from error

    def _apply(self, messages: Sequence[Mapping[str, Any]], tokenize: bool, **given: Any) -> Any:
        return self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            chat_template=self._source,
            tokenize=tokenize,
            return_dict=False,
            **{"add_generation_prompt": True, **self._arguments, **given},
        )

    def _check_arguments(self) -> None:
        """Refuse a template with a syntax error, and arguments that it does not use: they would change nothing."""
        # The tags that templates of models may have beyond Jinja's are known to transformers only.
        from transformers.utils.chat_template_utils import _compile_jinja_template

        try:
            environment = _compile_jinja_template(self._source).environment
            parsed = environment.parse(self._source)
        except TemplateSyntaxError as error:
            raise DataError(f"{self.name}, line {error.lineno}: {error.message}") from error
        given = {*GIVEN, *self._tokenizer.special_tokens_map, *environment.globals}
        used = meta.find_undeclared_variables(parsed) - given
        if unused := sorted(self._arguments.keys() - used):
            there = f"it uses {', '.join(sorted(used))}" if used else "it uses none"
            raise DataError(f"spec.data.chatTemplateArguments.{unused[0]}: {self.name} does not use it; {there}")

    def _check_system_prompt(self, system_prompt: str) -> None:
        user = {"role": "user", "content": "1"}
        try:
            without = self._apply([user], tokenize=False)
        except Exception:  # any error of a template. Each record has it, and is reported with its place.
            return
        advice = "leave it out, and put its text into the prompts"
        try:
            text = self._apply([{"role": "system", "content": system_prompt}, user], tokenize=False)
        except Exception as error:  # a template may raise any error
            refusal = f"{self.name} takes none ({one_line(error)})"
            raise DataError(f"spec.data.systemPrompt: {refusal}; {advice}") from error
        if text == without or system_prompt.strip() not in text:
            raise DataError(f"spec.data.systemPrompt: {self.name} drops it; {advice}, or give a template in {FIELD}")


def _read(source: str) -> str:
    path = local_path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{FIELD} {path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{FIELD} {path} cannot be read: {one_line(error)}") from error
    if not text.strip():
        raise DataError(f"{FIELD} {path} is empty")
    return text
