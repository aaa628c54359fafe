"""Agents of tests: programs that ask the model with the standard library."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ASK = """
import json, os, sys, urllib.request

def ask(messages):
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

def result(value):
    with open(os.environ["RLJOB_RESULT"], "w") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))

with open(os.environ["RLJOB_TASK"]) as file:
    task = json.load(file)
"""


def agent(root: Path, program: str) -> tuple[str, ...]:
    """Write a program into a folder; return its command there."""
    (root / "agent.py").write_text(ASK + textwrap.dedent(program))
    return (sys.executable, "agent.py")
