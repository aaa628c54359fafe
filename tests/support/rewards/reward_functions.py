"""Rewards of every kind of temper, loaded by the workers of the pool under test."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljob_runtime.data.prompt import Prompt


def length(prompt: Prompt, response: str) -> float:
    print("rules may print", flush=True)
    return len(response)


def scaled(prompt: Prompt, response: str, *, factor: float) -> float:
    return factor * len(response)


async def slow_agreement(prompt: Prompt, response: str) -> float:
    await asyncio.sleep(0.01)
    return 1


def kept(prompt: Prompt, response: str) -> float:
    """2, if the prompt came as it was sent."""
    return len(prompt.metadata["kept"]) if isinstance(prompt.metadata["kept"], tuple) else 0


def evaluated(prompt: Prompt, response: str) -> float:
    """Run the response as a program, in this process; worth its number of characters."""
    exec(response, {})
    return len(response)


def by_order(prompt: Prompt, response: str) -> object:
    """Does what the response says."""
    if response == "raise":
        raise LookupError("no such thing")
    if response == "hang":
        time.sleep(3600)
    if response == "sleep for a second":
        time.sleep(1)
    if response == "hang without the interpreter":
        ctypes.PyDLL(None).pause()
    if response == "crash":
        ctypes.string_at(0)
    if response == "exit":
        os._exit(3)
    if response == "leave a child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        Path(prompt.answer).write_text(str(child.pid))
        time.sleep(3600)
    if response == "write on the wire":
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b"garbage\n")
            except OSError:
                continue
    values = {
        "beyond": 1e308,
        "below": -1e7,
        "nan": float("nan"),
        "infinite": float("inf"),
        "text": "1.0",
        "none": None,
        "list": [1],
    }
    return values.get(response, 1.0)


number = 5


def needs_three(prompt: Prompt, response: str, extra: object) -> float:
    return 0
