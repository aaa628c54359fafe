"""Answers: a stored turn in the form that the client asked for.

An answer follows from the stored turn and the request alone, so a retry receives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rljob_runtime.gateway.text.tool_calls import ToolCall
from rljob_runtime.gateway.text.turn_text import ReplyText
from rljob_runtime.gateway.wire.chat_request import ChatRequest
from rljob_runtime.gateway.wire.fields import Json, call_id
from rljob_runtime.gateway.wire.generate_request import GenerateTokens
from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn


@dataclass(frozen=True)
class Answer:
    """The bytes of an answer."""

    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True)
class AnsweredTurn:
    """A turn with what identifies it to the client. `prompt`: the tokens before it."""

    episode: EpisodeAttempt
    model: str
    prompt: Sequence[int]
    turn: RecordedTurn


def cut_at_stop(reply: ReplyText, turn: RecordedTurn, stops: Sequence[str]) -> ReplyText:
    """Return a reply without the string of the client that ended it, and what the same token wrote after it."""
    places = [place for stop in stops if (place := reply.content.find(stop)) >= 0]
    if turn.finish_reason is not FinishReason.STOP or not places:
        return reply
    return ReplyText(reply.content[: min(places)], reply.calls, reply.reasoning, reply.malformed)


def named_calls(turn: RecordedTurn, calls: Sequence[ToolCall]) -> list[dict[str, str]]:
    """Return calls with ids that are unique within the episode."""
    return [
        {"id": call_id(turn.node, index), "name": call.name, "arguments": call.arguments}
        for index, call in enumerate(calls)
    ]


def chat_answer(request: ChatRequest, answered: AnsweredTurn, reply: ReplyText) -> Answer:
    """Return the answer to a chat request: one object, or its events if it is streamed."""
    if request.stream:
        return Answer(b"".join(_events(request, answered, reply)), "text/event-stream")
    choice: Json = {
        "index": 0,
        "message": _message(answered, reply),
        "finish_reason": _finish(answered.turn, reply),
        "logprobs": _logprobs(answered.turn) if request.logprobs else None,
    }
    body = {**_head(answered, "chat.completion"), "choices": [choice], "usage": _usage(answered)}
    if request.return_token_ids:
        choice["token_ids"] = list(answered.turn.token_ids)
        body["prompt_token_ids"] = list(answered.prompt)
    return Answer(_dump(body))


def generate_answer(request: GenerateTokens, answered: AnsweredTurn) -> Answer:
    """Return the answer to a request for tokens."""
    turn = answered.turn
    choice: Json = {
        "index": 0,
        "finish_reason": str(turn.finish_reason),
        "stop_reason": None,
        "token_ids": list(turn.token_ids),
        "logprobs": _logprobs(turn) if request.logprobs else None,
    }
    body: Json = {
        "request_id": _id(answered, "generate"),
        "model": answered.model,
        "choices": [choice],
        "usage": _usage(answered),
        "weight_version": turn.weight_version,
    }
    if request.return_token_ids:
        body["prompt_token_ids"] = list(answered.prompt)
    return Answer(_dump(body))


def conversation_answer(turn: tuple[Sequence[Json], AnsweredTurn, ReplyText] | None) -> Answer:
    """Return the messages of a turn with its answer, in the client's form; null without a turn."""
    if turn is None:
        return Answer(_dump({"messages": None}))
    messages, answered, reply = turn
    return Answer(_dump({"messages": [*messages, _message(answered, reply)]}))


def models_answer(model: str, context: int) -> Answer:
    """Return the one model that is served."""
    card = {"id": model, "object": "model", "created": 0, "owned_by": "rljob", "max_model_len": context}
    return Answer(_dump({"object": "list", "data": [card]}))


def _message(answered: AnsweredTurn, reply: ReplyText) -> Json:
    """Return an answer as the message that the client receives."""
    message: Json = {"role": "assistant", "content": reply.content or (None if reply.calls else ""), "refusal": None}
    return message | _optional(answered, reply)


def _events(request: ChatRequest, answered: AnsweredTurn, reply: ReplyText) -> Iterator[bytes]:
    """Yield the events of a streamed answer. They are sent together: the turn is stored before the first."""
    head = _head(answered, "chat.completion.chunk")
    if request.include_usage:
        head["usage"] = None

    def chunk(delta: Json, **more: object) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return _event({**head, "choices": [choice]})

    first: Json = {"role": "assistant", "content": reply.content or (None if reply.calls else "")}
    optional = _optional(answered, reply)
    for index, call in enumerate(optional.get("tool_calls", ())):
        call["index"] = index
    logprobs = _logprobs(answered.turn) if request.logprobs else None
    ids = {"token_ids": list(answered.turn.token_ids)} if request.return_token_ids else {}
    if request.return_token_ids:
        head["prompt_token_ids"] = list(answered.prompt)
    yield chunk(first | optional, logprobs=logprobs, **ids)
    head.pop("prompt_token_ids", None)
    yield chunk({}, finish_reason=_finish(answered.turn, reply))
    if request.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(answered)})
    yield b"data: [DONE]\n\n"


def _head(answered: AnsweredTurn, kind: str) -> Json:
    return {
        "id": _id(answered, "chatcmpl"),
        "object": kind,
        "created": int(answered.turn.stored_at),
        "model": answered.model,
    }


def _id(answered: AnsweredTurn, kind: str) -> str:
    return f"{kind}-{answered.episode.key}-{answered.episode.attempt}-{answered.turn.node}"


def _optional(answered: AnsweredTurn, reply: ReplyText) -> Json:
    found: Json = {}
    if reply.reasoning is not None:
        found["reasoning_content"] = reply.reasoning
    if reply.calls:
        found["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in named_calls(answered.turn, reply.calls)
        ]
    return found


def _finish(turn: RecordedTurn, reply: ReplyText) -> str:
    return "tool_calls" if reply.calls else str(turn.finish_reason)


def _usage(answered: AnsweredTurn) -> Json:
    prompt, sampled = len(answered.prompt), len(answered.turn.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _logprobs(turn: RecordedTurn) -> Json:
    """Return the logprobs in a form that has the ids as clients of either protocol read them."""
    pairs = zip(turn.token_ids, turn.logprobs, strict=True)
    content: list[Json] = [
        {"token": f"token_id:{token}", "token_id": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in pairs
    ]
    return {"content": content}


def _event(value: Json) -> bytes:
    return b"data: " + _dump(value) + b"\n\n"


def _dump(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()
