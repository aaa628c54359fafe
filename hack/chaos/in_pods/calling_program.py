"""Program of a long episode: it asks the model so many times, and does each calculation that the model asks for.

    python calling_program.py TURNS

It runs in the pods of runners, beside the calculator, with nothing but Python. What it did is in its memory only, so
the next runner starts it again. It asks the same then: it draws nothing, and reads no clock into its messages.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS = [{"type": "function", "function": {"name": "calculate", "parameters": PARAMETERS}}]
PASSING = frozenset({429, 500, 502, 503, 504})
"""Answers after which a client of OpenAI's protocol sends its request again."""
PATIENCE, PAUSE = 300.0, 1.0
"""Seconds of a request with all that follow it, and between two of them: a gateway or its pod may be replaced."""


def main() -> None:
    from calculator import calculate  # Beside this file in a pod.

    with open(os.environ["RLJOB_TASK"], encoding="utf-8") as file:
        messages = list(json.load(file)["messages"])
    for _ in range(int(sys.argv[1])):
        answer = ask({"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": TOOLS})
        messages += [answer, *(result(call, calculate) for call in answer.get("tool_calls") or ())]


def result(call: Mapping[str, Any], calculate: Any) -> dict[str, Any]:
    """Return the message with the result of a call."""
    arguments = json.loads(call["function"]["arguments"])
    return {"role": "tool", "tool_call_id": call["id"], "content": calculate(**arguments)}


def ask(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's message. Sends the request again while its answer is lost, or says that this may pass."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return answered(body)
        except urllib.error.HTTPError as error:
            if error.code not in PASSING or time.monotonic() > end:
                raise
        except (OSError, HTTPException, json.JSONDecodeError):
            if time.monotonic() > end:
                raise
        time.sleep(PAUSE)


def answered(body: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request and return the message of its answer."""
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=120) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


if __name__ == "__main__":
    main()
