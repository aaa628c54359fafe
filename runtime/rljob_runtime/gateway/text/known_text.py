"""Known text: turns of models whose templates the package `renderers` knows.

Such a template need not append: the package knows how a turn goes on, and what its tool calls look like. It promises
that the tokens of a turn stay as they are, and the gateway checks it (`GatewayStats.reencoded_tokens`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rljob_runtime.gateway.errors import RendererNotUsable, bad
from rljob_runtime.gateway.text.plain_text import PlainText
from rljob_runtime.gateway.text.tool_calls import ToolCall
from rljob_runtime.gateway.text.turn_text import ReplyText, TurnTokens
from rljob_runtime.gateway.wire.fields import Json, parse_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WRONG = (AssertionError, AttributeError, KeyError, TypeError, ValueError)
"""Errors of a renderer that opens with another tokenizer, as an assertion for a missing token. A download that fails
raises others, and another start may succeed."""
KEPT_REASONING = "all"
"""Turns go on with the reasoning of those before: the engine sampled it, and its tokens stay."""


def known_renderer(model: str) -> str | None:
    """Return the name of the renderer of a model's own template; None if the package has none."""
    from renderers.base import MODEL_RENDERER_MAP

    found: str | None = MODEL_RENDERER_MAP.get(model)
    return found


def renderer_of(named: str | None, model: str | None, own_template: bool) -> str | None:
    """Return the renderer of a job: the one that it names, else that of the model's name; None if there is none.

    `own_template`: whether the job uses the model's own template.
    """
    return named or (known_renderer(model) if model is not None and own_template else None)


class KnownText:
    """The turns of one model. `arguments`: those of its chat template. `model`: its name on the hub, if it has one."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        renderer: str,
        arguments: Mapping[str, Any] | None = None,
        model: str | None = None,
    ) -> None:
        """Open a renderer by its name.

        Raises `ValueError` for arguments that it does not take, and `RendererNotUsable` for a tokenizer without its
        tokens.
        """
        from renderers import create_renderer
        from renderers.base import ToolCallParseStatus, merge_chat_template_kwargs
        from renderers.configs import config_from_name

        config: Any = config_from_name(renderer)
        config = type(config)(thinking_retention=KEPT_REASONING)
        config = merge_chat_template_kwargs(config, arguments)
        self.name = renderer
        self._plain = PlainText(tokenizer)
        try:
            self._renderer: Any = create_renderer(_Encoder(tokenizer, self._plain, model), config)
        except WRONG as error:
            text = f"the renderer {renderer} does not open with the model's tokenizer: {str(error)[:300]}"
            raise RendererNotUsable(text) from error
        self._right = ToolCallParseStatus.OK

    def first(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[int]:
        """See `TurnText`."""
        try:
            tokens = self._renderer.render_ids(
                self._plain.guarded(list(messages)), tools=self._tools(tools), add_generation_prompt=True
            )
        except Exception as error:  # a renderer may raise any error, and says with it what it does not take
            raise bad(f"the model's template refuses the messages: {str(error)[:300]}", "messages") from error
        return list(tokens)

    def following(self, turn: TurnTokens, messages: Sequence[Json], tools: Sequence[Json]) -> list[int] | None:
        """See `TurnText`."""
        try:
            bridged = self._renderer.bridge_to_next_turn(
                list(turn.prompt), list(turn.sampled), self._plain.guarded(list(messages)), tools=self._tools(tools)
            )
        except Exception as error:  # see `first`
            raise bad(f"the model's template refuses the messages: {str(error)[:300]}", "messages") from error
        return None if bridged is None else list(bridged.token_ids)

    def reply(self, turn: TurnTokens, tools: Sequence[Json], calls: bool) -> ReplyText:
        """See `TurnText`. A block that is no call ends the text, without the tokens around it."""
        parsed = self._renderer.parse_response(
            list(turn.sampled), tools=self._tools(tools), prompt_ids=list(turn.prompt)
        )
        if not calls:
            return ReplyText(
                "".join((parsed.content, *(call.raw for call in parsed.tool_calls))), (), _reasoning(parsed)
            )
        found = [(self._call(call), call.raw) for call in parsed.tool_calls]
        wrong = [raw for call, raw in found if call is None]
        named = tuple(call for call, _ in found if call is not None)
        return ReplyText("".join((parsed.content, *wrong)), named, _reasoning(parsed), len(wrong))

    def _call(self, parsed: Any) -> ToolCall | None:
        """Return a call that the renderer found; None if it is none that can be carried on."""
        if parsed.status != self._right or not parsed.name:
            return None
        given = parsed.arguments
        arguments = given if given and isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
        if parse_object(json.dumps({"name": parsed.name})) is None or parse_object(arguments) is None:
            return None
        return ToolCall(parsed.name, arguments)

    def _tools(self, tools: Sequence[Json]) -> Any:
        """Return tools as renderers take them: None without any."""
        return self._plain.guarded(list(tools)) or None


class _Encoder:
    """A tokenizer that encodes marked text piece by piece (`plain_text`).

    Sizes of one family differ in their templates, and renderers tell them apart by the name on the hub. The tokenizer
    was read from a folder, whose name says nothing.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, plain: PlainText, model: str | None) -> None:
        self._tokenizer = tokenizer
        self._plain = plain
        self.name_or_path = tokenizer.name_or_path if model is None else model

    def encode(self, text: str, *args: Any, **settings: Any) -> list[int]:
        """Return the tokens of a rendered text, without those that a tokenizer would set around it."""
        return self._plain.encode(text)

    def __getattr__(self, name: str) -> Any:
        # `__call__` is hidden, because it would encode the marks. Renderers then use `encode`.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._tokenizer, name)


def _reasoning(parsed: Any) -> str | None:
    return parsed.reasoning_content or None
