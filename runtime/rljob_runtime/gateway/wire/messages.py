"""Messages: those of a chat request in one form, and the digests by which a conversation is found again.

Clients send an assistant's message back in their own form: without content or with an empty one, with fields that say
nothing, with arguments that were parsed and written again. All of these are the same message. A message that says
something else is another one, and its conversation is another branch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_runtime.gateway.errors import bad
from rljob_runtime.gateway.wire.fields import Json, canonical, parse_object, refuse_unknown

MOST_MESSAGES = 4096
MOST_CALLS = 128
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
COMMON = frozenset({"role", "content", "name"})
ASSISTANT = COMMON | {"tool_calls", "refusal", "audio", "annotations", "function_call", "reasoning_content"}
"""Fields of an assistant's message. The SDK's models write all of them."""
EMPTY = ("refusal", "audio", "annotations", "function_call")
"""Those of them that no answer of this gateway fills."""


def parse_messages(given: Any) -> tuple[Json, ...]:
    """Return the messages in the form that chat templates take. Raises `GatewayError`."""
    if not isinstance(given, list) or not 0 < len(given) <= MOST_MESSAGES:
        raise bad(f"messages: a list of 1 to {MOST_MESSAGES} messages would be right", "messages")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(given))


def chain(tools: Sequence[Json], messages: Sequence[Json]) -> list[bytes]:
    """Return a digest of each beginning of a conversation: of one message, of two, and so on."""
    running = hashlib.blake2b(canonical(list(tools)), digest_size=16)
    found = []
    for message in messages:
        text = canonical({name: value for name, value in message.items() if name in ("role", "content", "name")})
        calls = canonical([_call_said(call) for call in message.get("tool_calls", ())])
        running.update(b"%d %d " % (len(text), len(calls)))  # no two sequences of messages have the same bytes
        running.update(text)
        running.update(calls)
        found.append(running.digest())
    return found


def assistant_message(content: str, calls: Sequence[Mapping[str, str]], reasoning: str | None = None) -> Json:
    """Return an answer as a message of the conversation. `calls` have an id, a name and arguments as JSON text."""
    message: Json = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [_template_call(call["id"], call["name"], call["arguments"]) for call in calls]
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message


def _message(given: Any, where: str) -> Json:
    if not isinstance(given, dict):
        raise bad(f"{where} is no object", where)
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise bad(f"{where}.role is {str(role)[:40]!r}; one of {', '.join(ROLES)} is right", where)
    role = ROLES[role]
    known = ASSISTANT if role == "assistant" else COMMON | {"tool_call_id"} if role == "tool" else COMMON
    refuse_unknown(given, known, f"{where}.")
    message: Json = {"role": role, "content": _content(given.get("content"), where)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if given.get(name) is not None:
            message[name] = _string(given[name], f"{where}.{name}")
    if filled := [name for name in EMPTY if given.get(name)]:
        raise bad(f"{where}.{filled[0]} is not supported", f"{where}.{filled[0]}", "unsupported")
    if calls := _calls(given.get("tool_calls"), f"{where}.tool_calls"):
        message["tool_calls"] = calls
    return message


def _content(given: Any, where: str) -> str:
    """Return the text of a content: a string, nothing, or a list of parts of text."""
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, list):
        raise bad(f"{where}.content is neither text nor a list of parts", where)
    for part in given:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise bad(f"{where}.content has a part of type {str(kind)[:40]!r}; text is right", where, "unsupported")
    return "".join(part["text"] for part in given)


def _calls(given: Any, where: str) -> list[Json]:
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > MOST_CALLS:
        raise bad(f"{where}: a list of at most {MOST_CALLS} calls would be right", where)
    return [_call(call, f"{where}[{index}]") for index, call in enumerate(given)]


def _call(given: Any, where: str) -> Json:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or given.get("type", "function") != "function":
        raise bad(f"{where} is no call of a function", where)
    name, arguments = (_string(function.get(part), f"{where}.function.{part}") for part in ("name", "arguments"))
    return _template_call(_string(given.get("id", ""), f"{where}.id"), name, arguments)


def _template_call(id: str, name: str, arguments: str) -> Json:
    """Return a call as templates take it: with arguments as an object where they are one."""
    parsed = parse_object(arguments)
    value = arguments if parsed is None else parsed
    return {"id": id, "type": "function", "function": {"name": name, "arguments": value}}


def _call_said(call: Json) -> list[Any]:
    return [call["function"]["name"], call["function"]["arguments"]]


def _string(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise bad(f"{where} is no text", where)
    return given
