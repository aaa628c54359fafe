"""Generate request: the body of `POST /inference/v1/generate`, vLLM's protocol of tokens in and tokens out.

A client with a renderer of its own sends tokens. They are prompt: what of them an engine sampled is known by the
episode's tree, and never by the client's word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rljob_runtime.gateway.errors import bad
from rljob_runtime.gateway.wire.fields import Json, flag, refuse_several, refuse_unknown, stop_strings, whole

MOST_STOP_TOKENS = 128
KNOWN = frozenset({
    "request_id", "token_ids", "sampling_params", "model", "stream", "cache_salt", "priority", "return_token_ids",
    "output_mode", "token_offsets",
})  # fmt: skip
PARAMETERS = frozenset({
    "n", "max_tokens", "stop", "stop_token_ids", "logprobs", "prompt_logprobs", "temperature", "top_p", "top_k",
    "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos",
    "logit_bias", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "detokenize",
    "output_kind", "truncate_prompt_tokens",
})  # fmt: skip


@dataclass(frozen=True)
class GenerateTokens:
    """A request for the tokens after `token_ids`."""

    model: str | None
    token_ids: tuple[int, ...]
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: bool = False
    return_token_ids: bool = False


def parse_generate_request(body: Json, vocabulary: int) -> GenerateTokens:
    """Check a body. `vocabulary`: number of the model's tokens. Raises `GatewayError`."""
    refuse_unknown(body, KNOWN)
    if flag(body.get("stream"), "stream"):
        raise bad("stream: only false is possible here", "stream", "unsupported")
    if body.get("output_mode", "tokens") != "tokens":
        raise bad("output_mode: only tokens is possible", "output_mode", "unsupported")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise bad("model is no text", "model")
    parameters = _parameters(body.get("sampling_params"))
    return GenerateTokens(
        model=model,
        token_ids=_tokens(body.get("token_ids"), "token_ids", vocabulary),
        max_tokens=whole(parameters.get("max_tokens"), "sampling_params.max_tokens"),
        stop=stop_strings(parameters.get("stop"), "sampling_params.stop"),
        stop_token_ids=_stop_tokens(parameters.get("stop_token_ids"), vocabulary),
        logprobs=whole(parameters.get("logprobs"), "sampling_params.logprobs", 0) is not None,
        return_token_ids=flag(body.get("return_token_ids"), "return_token_ids"),
    )


def _parameters(given: Any) -> Json:
    if not isinstance(given, dict):
        raise bad("sampling_params is no object", "sampling_params")
    refuse_unknown(given, PARAMETERS, "sampling_params.")
    refuse_several(given.get("n"), "sampling_params.n")
    most = whole(given.get("logprobs"), "sampling_params.logprobs", 0) or 0
    for name, wrong in (("logprobs", most > 1), ("prompt_logprobs", given.get("prompt_logprobs") is not None)):
        if wrong:
            text = f"sampling_params.{name}: engines return the logprob of each sampled token, and no other"
            raise bad(text, f"sampling_params.{name}", "unsupported")
    if given.get("truncate_prompt_tokens") is not None:
        name = "sampling_params.truncate_prompt_tokens"
        raise bad(f"{name}: a prompt is never truncated", name, "unsupported")
    return given


def _stop_tokens(given: Any, vocabulary: int) -> tuple[int, ...]:
    if not given:
        return ()
    name = "sampling_params.stop_token_ids"
    found = _tokens(given, name, vocabulary)
    if len(found) > MOST_STOP_TOKENS:
        raise bad(f"{name}: at most {MOST_STOP_TOKENS} tokens would be right", name)
    return found


def _tokens(given: Any, param: str, vocabulary: int) -> tuple[int, ...]:
    if not isinstance(given, list) or not given:
        raise bad(f"{param}: a list of tokens would be right", param)
    for token in given:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise bad(f"{param} has {str(token)[:40]!r}; numbers from 0 to {vocabulary - 1} are right", param)
    return tuple(given)
