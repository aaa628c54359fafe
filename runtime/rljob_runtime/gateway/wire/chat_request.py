"""Chat request: the body of `POST /v1/chat/completions`, checked.

The job decides how its policy is sampled. A client may end a turn earlier, and no more. Its other sampling parameters
are stored with the turn, and change nothing. What would need another answer than the policy's own is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rljob_runtime.gateway.errors import bad
from rljob_runtime.gateway.wire.fields import Json, flag, refuse_several, refuse_unknown, stop_strings, whole
from rljob_runtime.gateway.wire.messages import parse_messages

MOST_TOOLS = 512
IGNORED_SAMPLING = frozenset({
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "reasoning_effort", "verbosity",
})  # fmt: skip
"""Sampling parameters of clients, which the job decides."""
WITHOUT_EFFECT = frozenset({"user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"})
"""Parameters that say nothing about the answer."""
KNOWN = (
    frozenset({
        "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "n", "stop",
        "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "return_token_ids", "response_format",
    })
    | IGNORED_SAMPLING
    | WITHOUT_EFFECT
)  # fmt: skip


@dataclass(frozen=True)
class ChatRequest:
    """A chat request. `calls_allowed`: whether a tool call in the answer is one, or text."""

    model: str | None
    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()
    calls_allowed: bool = False
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    return_token_ids: bool = False


def parse_chat_request(body: Json) -> ChatRequest:
    """Check a body. Raises `GatewayError` with the parameter that is wrong."""
    refuse_unknown(body, KNOWN)
    refuse_several(body.get("n"), "n")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise bad("model is no text", "model")
    _check_format(body.get("response_format"))
    stream = flag(body.get("stream"), "stream")
    tools = _tools(body.get("tools"))
    return ChatRequest(
        model=model,
        messages=parse_messages(body.get("messages")),
        tools=tools,
        calls_allowed=_calls_allowed(body, bool(tools)),
        stream=stream,
        include_usage=_include_usage(body.get("stream_options"), stream),
        max_tokens=_max_tokens(body),
        stop=stop_strings(body.get("stop")),
        logprobs=_logprobs(body),
        return_token_ids=flag(body.get("return_token_ids"), "return_token_ids"),
    )


def _max_tokens(body: Json) -> int | None:
    given = [whole(body.get(name), name) for name in ("max_tokens", "max_completion_tokens")]
    return min((one for one in given if one is not None), default=None)


def _logprobs(body: Json) -> bool:
    if whole(body.get("top_logprobs"), "top_logprobs", 0):
        raise bad("top_logprobs: only 0 is possible; engines return the sampled token's alone", "top_logprobs")
    return flag(body.get("logprobs"), "logprobs")


def _include_usage(options: Any, stream: bool) -> bool:
    if options is None:
        return False
    if not stream or not isinstance(options, dict):
        raise bad("stream_options: an object, with stream: true, would be right", "stream_options")
    refuse_unknown(options, {"include_usage", "include_obfuscation"}, "stream_options.")
    return flag(options.get("include_usage"), "stream_options.include_usage")


def _check_format(given: Any) -> None:
    if given is not None and given != {"type": "text"}:
        text = "response_format: only text is possible; a constrained answer is not the policy's own"
        raise bad(text, "response_format", "unsupported")


def _tools(given: Any) -> tuple[Json, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > MOST_TOOLS:
        raise bad(f"tools: a list of at most {MOST_TOOLS} tools would be right", "tools")
    for index, tool in enumerate(given):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad(f"tools[{index}] is no function with a name", f"tools[{index}]")
    return tuple(given)


def _calls_allowed(body: Json, tools: bool) -> bool:
    """Return whether the answer's tool calls are calls. Tools stay in the prompt: without them it would be another."""
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        text = f"tool_choice is {str(choice)[:80]!r}; auto or none are possible: a forced call is not the policy's own"
        raise bad(text, "tool_choice", "unsupported")
    if body.get("parallel_tool_calls") not in (None, True):
        raise bad("parallel_tool_calls: only true is possible", "parallel_tool_calls", "unsupported")
    return tools and choice != "none"
