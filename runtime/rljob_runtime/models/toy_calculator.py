"""Toy calculator model: a tiny Llama that seldom asks a calculator, so a reward rises once it learns to use the tool.

It cannot multiply. On first use it learns from a fixed seed (20 s of one core) to copy the two numbers of a question
into a call of the tool `calculate`, and the tool's result into its answer. Then it learns to answer `?` without a call
in most cases. So reinforcement has one thing to teach, the same for every prompt: to call the tool.

Copying is hard for so small a model, unless a token and its copy are always equally far apart. So a call repeats the
question's own characters, blanks included, and the rest of the call is two tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_runtime.models import toy
from rljob_runtime.models.cache import built_once
from rljob_runtime.models.toy import (
    EOS,
    IGNORED,
    NO_ANSWER,
    UNKNOWN,
    recipe,
    save_taught,
    toy_model,
    toy_tokenizer,
    train,
)

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

ROLES = ("<system>", "<user>", "<assistant>", "<tool>")
TOOL = "calculate"
CALL = f'<tool_call>{{"name": "{TOOL}", "arguments": {{"expression": "'
CALL_END = '"}}</tool_call>'
"""The beginning and the end of a call, each one token."""
BEFORE, AFTER = "Solve the following multiplication: ", ". Give only the result as your final answer."
"""The text around the expression, each one token: a character each would double the time of the first use."""
PHRASING = f"{BEFORE}{{expression}}{AFTER}"
"""The prompt that it understands: reasoning-gym's products."""
TEMPLATE = (
    "{% if tools %}<system>{% for tool in tools %}{{ tool['function']['name'] }}"
    "{% if not loop.last %} {% endif %}{% endfor %}" + EOS + "{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}"
    '<tool_call>{"name": "{{ call[\'function\'][\'name\'] }}", "arguments": '
    "{% if call['function']['arguments'] is string %}{{ call['function']['arguments'] }}"
    "{% else %}{{ call['function']['arguments'] | tojson }}{% endif %}"
    "}</tool_call>{% endfor %}" + EOS + "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""It only appends. Of a tool it writes the name: the model knows no other one."""
TWO_DIGITS = range(10, 100)
SUCCESS = 0.32
"""Target share of calls at temperature 1; the rest is `NO_ANSWER`. Nearly all calls lead to the right answer."""
ROWS = 32
"""Products of a step."""
COPY_STEPS, COPY_RATE = 400, 3e-3
NO_ANSWER_STEPS, NO_ANSWER_RATE = 80, 1e-3
SEED = 21


@dataclass(frozen=True)
class Rows:
    """Conversations. Ids and labels are [rows, longest]; a label is `IGNORED` where the model does not speak."""

    ids: torch.Tensor
    labels: torch.Tensor


def toy_calculator(cache_dir: Path) -> Path:
    """Return the Hugging Face folder, built below `cache_dir` if it is absent."""
    return built_once(cache_dir, calculator_folder_name(), _build)


def calculator_folder_name() -> str:
    """Name the folder below the cache."""
    return f"toy-calculator-{recipe(Path(__file__))}-{recipe(Path(toy.__file__))}"


def calculator_tokenizer() -> PreTrainedTokenizerFast:
    """Build the toy's tokenizer, with tokens for the question, roles and calls, and a chat template."""
    from tokenizers import AddedToken, Regex
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    tokenizer = toy_tokenizer()
    # The question's are no added tokens: the gateway lets no words of a message become one of those.
    words = [*sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__), BEFORE, AFTER]
    backend = tokenizer.backend_tokenizer
    backend.model = WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN)
    pattern = "|".join((re.escape(BEFORE), re.escape(AFTER), r"[\s\S]"))
    backend.pre_tokenizer = Split(Regex(pattern), behavior="isolated")
    tokenizer.add_tokens([AddedToken(role, special=True, normalized=False) for role in ROLES], special_tokens=True)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (CALL, CALL_END)])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def calculator_tool() -> dict[str, Any]:
    """Return the tool as the model is offered it."""
    parameters = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
    return {"type": "function", "function": {"name": TOOL, "parameters": parameters}}


def called(expression: str, result: str) -> list[dict[str, Any]]:
    """Return a conversation in which the model calls the tool and answers with its result."""
    call = {"type": "function", "function": {"name": TOOL, "arguments": {"expression": expression}}}
    return [
        {"role": "user", "content": PHRASING.format(expression=expression)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": result},
    ]


def not_called(expression: str, result: str) -> list[dict[str, Any]]:
    """Return a conversation in which the model answers `?`."""
    return [called(expression, result)[0], {"role": "assistant", "content": NO_ANSWER}]


def products() -> list[tuple[str, str]]:
    """Return every product of two numbers of two digits: the expression and its value."""
    return [(f"{a} * {b}", str(a * b)) for a in TWO_DIGITS for b in TWO_DIGITS]


def encode(tokenizer: PreTrainedTokenizerBase, conversations: Sequence[str]) -> Rows:
    """Encode conversations. What follows `<assistant>`, up to the end of the turn, is the model's."""
    import torch

    vocabulary = tokenizer.get_vocab()
    speaks, ends = vocabulary[ROLES[2]], vocabulary[EOS]
    rows = [tokenizer.encode(text) for text in conversations]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        speaking = False
        for place, token in enumerate(tokens):
            if speaking:
                labels[row, place] = token
            speaking = token == speaks or (speaking and token != ends)
    return Rows(ids, labels)


def log_likelihoods(model: LlamaForCausalLM, rows: Rows) -> torch.Tensor:
    """Return the log-likelihood of what the model says in each row: [rows]."""
    import torch.nn.functional as F

    logits = model(input_ids=rows.ids).logits[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), rows.labels[:, 1:], ignore_index=IGNORED, reduction="none")
    return -losses.sum(-1)


def _build(target: Path) -> None:
    save_taught(target, SEED, _taught)


def _taught() -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM]:
    """Teach the copies, and then to answer `?` in most cases."""
    tokenizer, model = calculator_tokenizer(), toy_model()
    written = [(_text(tokenizer, called(*product)), _text(tokenizer, not_called(*product))) for product in products()]
    calls, others = (encode(tokenizer, texts) for texts in zip(*written, strict=True))
    for steps, rate, share in ((COPY_STEPS, COPY_RATE, 1.0), (NO_ANSWER_STEPS, NO_ANSWER_RATE, SUCCESS)):
        train(model, steps, rate, partial(_loss, model, calls, others, share))
    return tokenizer, model


def _loss(model: LlamaForCausalLM, calls: Rows, others: Rows, share: float, step: int) -> torch.Tensor:
    """Return the loss of drawn products: `share` of it is that of calls."""
    import torch

    chosen = torch.randint(len(calls.ids), (ROWS,))
    loss = -share * log_likelihoods(model, _chosen(calls, chosen)).mean()
    if share < 1:
        loss = loss - (1 - share) * log_likelihoods(model, _chosen(others, chosen)).mean()
    return loss


def _chosen(rows: Rows, chosen: torch.Tensor) -> Rows:
    return Rows(rows.ids[chosen], rows.labels[chosen])


def _text(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]]) -> str:
    return str(tokenizer.apply_chat_template(messages, tools=[calculator_tool()], tokenize=False))
