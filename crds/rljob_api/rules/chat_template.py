"""Chat template rules: those of the chat template's fields in `spec.data`."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.errors import FieldError
from rljob_api.spec import RLJobSpec

SET_BY_THE_JOB = frozenset(
    {
        "messages", "conversation", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
        "padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    }
)  # fmt: skip
"""Arguments that decide what the template is applied to, and in which form its result comes."""


def check_chat_template(spec: RLJobSpec) -> Iterator[FieldError]:
    """Yield the mistakes of the template's fields."""
    data = spec.data
    for field, value in (
        ("chatTemplateFile", data.chat_template_file),
        ("chatTemplateArguments", data.chat_template_arguments),
        ("chatTemplateRenderer", data.chat_template_renderer),
    ):
        if value is not None and not data.chat_template:
            yield FieldError(f"spec.data.{field}", value, "needs spec.data.chatTemplate: true; or leave it out")
    if data.chat_template_renderer is not None and not spec.environments:
        advice = "needs spec.environments, whose episodes it writes; or leave it out"
        yield FieldError("spec.data.chatTemplateRenderer", data.chat_template_renderer.value, advice)
    for name, value in (data.chat_template_arguments or {}).items():
        if name in SET_BY_THE_JOB:
            advice = "must be left out: the job sets it. Variables of the template are right, e.g. enable_thinking"
            yield FieldError(f"spec.data.chatTemplateArguments.{name}", value, advice)
