"""Actions: a model's answer as an action of an OpenEnv environment, and an observation as a text for the model.

A server publishes the JSON schema of its actions. An action of one text is the model's answer itself; another one is a
JSON object. A server whose actions are calls of tools offers these to the model as tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rljob_env.episode import Json
from rljob_env.failures import Failed, Part
from rljob_env.tools.mcp_client import text_of_content
from rljob_env.tools.toolbox import ToolError

TOOL_ACTIONS = frozenset(("Action", "CallToolAction", "ListToolsAction"))
"""Titles of action schemas that say nothing of tools' arguments: the server lists its tools then."""
LIST_TOOLS: Json = {"type": "list_tools"}
METADATA = "metadata"
"""A field that every action and every observation has. It is not for the model."""
TRANSPORT_ERROR = "transport_error"


class ActionRefused(Exception):
    """An answer that is no action. The message is for the model."""


def takes_tools(schema: Mapping[str, Any]) -> bool:
    """Say whether a server's actions are calls of tools."""
    return schema.get("title") in TOOL_ACTIONS


def instruction(schema: Mapping[str, Any]) -> str:
    """Return how a model is told to act; nothing where its answer is the action."""
    if takes_tools(schema) or _text_field(schema) is not None:
        return ""
    return f"Answer with a JSON object of this schema: {json.dumps(_shown(schema), ensure_ascii=False)}"


def action_of(answer: str, schema: Mapping[str, Any]) -> Json:
    """Return the action that an answer is. Raises `ActionRefused`."""
    text = _without_fence(answer.strip())
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and found and set(found) <= set(schema.get("properties", {})):
        return found
    field = _text_field(schema)
    if field is None:
        raise ActionRefused("the answer is no action; a JSON object of the schema would be right")
    return {field: answer.strip()}


def call_action(name: str, arguments: Mapping[str, Any]) -> Json:
    """Return the action that calls a tool."""
    return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}


def observation_text(observation: Mapping[str, Any]) -> str:
    """Return what the model sees: the text of an observation that has one, or its fields as JSON."""
    fields = {name: value for name, value in observation.items() if name != METADATA}
    if not fields:
        return ""
    if len(fields) == 1 and isinstance(text := next(iter(fields.values())), str):
        return text
    return json.dumps(fields, ensure_ascii=False)


def tool_of(given: Any) -> Json:
    """Return a listed tool as OpenAI's protocol has it. Raises `Failed`."""
    try:
        return {"name": given["name"], "description": given["description"], "parameters": dict(given["input_schema"])}
    except (KeyError, TypeError, ValueError) as error:
        raise Failed(Part.ENVIRONMENT, f"the OpenEnv server lists {str(given)[:100]!r} as a tool") from error


def result_text(observation: Mapping[str, Any]) -> str:
    """Return what a called tool answers. Raises `ToolError` for what its arguments caused, and `Failed`."""
    error = observation.get("error")
    if isinstance(error, dict):
        message = str(error.get("message", ""))
        if error.get("error_type") == TRANSPORT_ERROR:
            raise Failed(Part.TOOL_SERVER, message)
        raise ToolError(message)
    result = observation.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("content"), list):
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    text = text_of_content([one for one in result["content"] if isinstance(one, dict)])
    if result.get("is_error"):
        raise ToolError(text)
    return text


def _text_field(schema: Mapping[str, Any]) -> str | None:
    """Return the field of an action that is one text."""
    properties = schema.get("properties", {})
    required = schema.get("required") or [name for name in properties if name != METADATA]
    if len(required) == 1 and properties.get(required[0], {}).get("type") == "string":
        return str(required[0])
    return None


def _shown(schema: Mapping[str, Any]) -> Json:
    properties = {name: one for name, one in schema.get("properties", {}).items() if name != METADATA}
    return {**schema, "properties": properties}


def _without_fence(text: str) -> str:
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text.partition("\n")[2].removesuffix("```").strip()
    return text
