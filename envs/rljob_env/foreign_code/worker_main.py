"""Worker process: loads functions and calls them, one call at a time, for the runner that started it.

    python -m rljob_env.foreign_code.worker_main ROOT FUNCTION…

Requests and answers are lines of JSON on the pipes of standard input and output. What the functions print goes to
standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rljob_env.failures import ToolServerFailed
from rljob_env.foreign_code.functions import CannotLoad, Function, called, described, load_function, wrong_arguments

MOST_CHARACTERS = 1 << 16
"""Longest observation of a tool. A model's context holds no more."""


def main() -> None:
    """Serve until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    root, *names = sys.argv[1:]
    try:
        functions = {name: load_function(Path(root), name) for name in names}
    except CannotLoad as error:
        _write(answers, {"cannotLoad": str(error)})
        return
    _write(answers, {"loaded": True})
    for line in requests:
        call = json.loads(line)
        answer = _ANSWERS[call["what"]](functions[call["function"]], call)
        _write(answers, {"call": call["call"], **answer})


def _describe(function: Function, call: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"value": described(function)}
    except CannotLoad as error:
        return {"failed": str(error)}


def _observe(function: Function, call: Mapping[str, Any]) -> dict[str, Any]:
    """Call a tool with what a model wrote. Its exceptions are observations."""
    wrong = wrong_arguments(function, call["named"])
    if wrong is not None:
        return {"error": wrong}
    try:
        value = called(function, **call["named"])
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    except ToolServerFailed as error:
        return {"failed": str(error) or type(error).__name__}
    except Exception as error:
        return {"error": shortened(f"{type(error).__name__}: {error}")}
    return {"value": shortened(text)}


def _evaluate(function: Function, call: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function of the job's owner. Its exceptions are failures."""
    try:
        with _placed(**call["place"]):
            value = called(function, *call["given"])
        return {"value": json.loads(json.dumps(value, default=_number))}
    except Exception as error:
        return {"failed": shortened(f"{type(error).__name__}: {error}")}


@contextlib.contextmanager
def _placed(folder: str | None = None, home: str | None = None) -> Iterator[None]:
    """Work in a folder and with a HOME while the context is open. Raises `OSError`."""
    own_folder, own_home = os.getcwd(), os.environ["HOME"]
    try:
        if folder is not None:
            os.chdir(folder)
        os.environ["HOME"] = home or own_home
        if home is not None:
            # Programs that git starts for its settings would be those of any program that wrote into that HOME.
            os.environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        yield
    finally:
        os.chdir(own_folder)
        os.environ["HOME"] = own_home
        for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
            os.environ.pop(name, None)


_ANSWERS = {"describe": _describe, "observe": _observe, "evaluate": _evaluate}


def _number(value: Any) -> Any:
    """Return a number of another library as Python's."""
    return value.item() if hasattr(value, "item") else float(value)


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text that a request can carry: not longer than a bound, and without halves of characters."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} more characters)"


def _write(answers: IO[bytes], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
