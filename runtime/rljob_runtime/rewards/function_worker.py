"""Function worker: loads the rules, then scores one (rule, prompt, response) at a time.

The pool starts `python -m rljob_runtime.rewards.function_worker` and communicates over its pipes. Requests arrive as
pickled frames on stdin, because the pool is trusted. Replies are JSON lines, because rules are not trusted. Output of
rules goes to stderr. The worker ends with the pool.

A worker of built-in rules that evaluate text never evaluates one itself. Each text is evaluated in its own confined
process (`evaluation.py`), because a model wrote it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import json
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO

from rljob_runtime.rewards.evaluation import CallerGone, evaluate
from rljob_runtime.rewards.rules import InvalidReward, Rule, confined
from rljob_runtime.rewards.signatures import as_reward
from rljob_runtime.sandbox.confine_child import Interpreter, installed_packages
from rljob_runtime.sandbox.program import SandboxUnavailable
from rljob_runtime.sandbox.resource_usage import threads
from rljob_runtime.sandbox.syscalls import PR_SET_PDEATHSIG, prctl
from rljob_runtime.user_functions.loading import FunctionNotLoaded, load_function
from rljob_runtime.user_functions.tracebacks import Tracebacks

LENGTH_BYTES = 8
LONGEST_REASON = 1000
"""Characters of a rule's error that are reported. The error may contain the whole response."""

Json = dict[str, Any]
Work = Callable[[str, Any, str], Json]
"""Computes an answer from a rule's name, a prompt and a response."""
Receive = Callable[[], Any]


def load(rule: Rule) -> Callable[..., Any]:
    """Import the function of a rule and bind its config.

    Raises `InvalidReward`.
    """
    label = f"reward {rule.name}"
    try:
        function = load_function(rule.function, label)
    except FunctionNotLoaded as error:
        raise InvalidReward(f"{label}: {error}") from error
    if rule.ours:
        _import_library(rule)
    try:
        return as_reward(function, rule.config)
    except TypeError as error:
        call = f"{rule.function}(prompt, response, **{dict(rule.config)})"
        raise InvalidReward(f"{label}: {call} is no call that fits: {error}") from error


def _import_library(rule: Rule) -> None:
    """Import the library that a built-in function needs, before the first response. Raises `InvalidReward`."""
    module_name, _, name = rule.function.partition(":")
    if library := getattr(importlib.import_module(module_name), "LIBRARIES", {}).get(name):
        try:
            importlib.import_module(library)
        except Exception as error:
            raise InvalidReward(f"reward {rule.name}: module {library!r} cannot be imported: {error!r}") from error


def preparation(rule: Rule) -> Callable[[object], object]:
    """Return the work that a worker does for a prompt before an isolated evaluation.

    Later evaluations find its result.
    """
    module_name, _, name = rule.function.partition(":")
    ready = getattr(importlib.import_module(module_name), "PREPARATIONS", {}).get(name)
    return (lambda prompt: None) if ready is None else partial(ready, **rule.config)


def score(function: Callable[..., Any], prompt: object, response: str) -> float:
    """Call a rule and run coroutines to their end.

    Raises the rule's errors, and `TypeError` when the result is no number.
    """
    value = function(prompt, response)
    if inspect.iscoroutine(value):
        value = asyncio.run(value)
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"it returned {type(value).__name__}; a number would be right")
    return float(value)


def read(stream: BinaryIO) -> Any:
    """Read the next request.

    Ends the process when the pool has closed its end.
    """
    header = stream.read(LENGTH_BYTES)
    if not header:
        os._exit(0)
    return pickle.loads(stream.read(int.from_bytes(header, "little")))


def frames(stream: BinaryIO, inbox: queue.SimpleQueue[Any]) -> None:
    """Read requests until the pool closes its end, then end the process, even while a rule runs.

    An unreadable request also ends the process, because it could never be answered.
    """
    try:
        while True:
            inbox.put(read(stream))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def frame(message: object) -> bytes:
    """Encode a request as `read` expects it."""
    body = pickle.dumps(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class InProcessEvaluator:
    """Computes answers in this process. An error of a rule is an answer, and its traceback goes to stderr once."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Load the rules. Raises `InvalidReward`."""
        self._functions = {rule.name: load(rule) for rule in rules}
        self._tracebacks = Tracebacks()

    def __call__(self, name: str, prompt: object, response: str) -> Json:
        """Compute the rule's answer."""
        try:
            return {"value": score(self._functions[name], prompt, response)}
        except Exception as error:
            return {"raised": self._tracebacks.print_once(f"reward {name}", error)[:LONGEST_REASON]}


class IsolatedEvaluator:
    """Computes each answer in its own confined process.

    `requests` becomes readable when the pool has left.
    """

    def __init__(self, rules: Sequence[Rule], requests: int, began: Callable[[int], None]) -> None:
        """Load the rules and test the confinement.

        Raises `InvalidReward`, and `SandboxUnavailable` where a process cannot be confined.
        """
        self._functions = {rule.name: load(rule) for rule in rules}
        self._preparations = {rule.name: preparation(rule) for rule in rules}
        if (count := threads(os.getpid())) != 1:
            raise SandboxUnavailable(f"a worker has {count} threads before it forks; one would be right")
        self._readable = Interpreter.of_this_process(installed_packages()).allowed
        self._requests, self._began = requests, began
        gc.freeze()  # garbage collection in a fork would copy everything that is loaded
        tried = evaluate(lambda: 0.0, self._readable, requests)
        if tried.get("value") != 0.0:
            raise SandboxUnavailable(str(tried.get("unavailable") or f"a confined process computes nothing: {tried}"))

    def __call__(self, name: str, prompt: object, response: str) -> Json:
        """Compute the rule's answer.

        Raises `CallerGone`.
        """
        try:
            self._preparations[name](prompt)
        except Exception as error:
            return {"raised": f"{type(error).__name__}: {error}"[:LONGEST_REASON]}
        work = partial(score, self._functions[name], prompt, response)
        return evaluate(work, self._readable, self._requests, self._began)


def serve(receive: Receive, work: Work, reply: Callable[[Json], None]) -> None:
    """Answer requests forever.

    Each answer carries the number of its request.
    """
    while True:
        call, name, prompt, response = receive()
        reply({"call": call, **work(name, prompt, response)})


def main() -> None:
    """Take over the pipes, then serve."""
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool handles Ctrl-C
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def reply(message: Json) -> None:
        print(json.dumps(message), file=out, flush=True)

    try:
        work, receive = _prepared(read(requests), requests, reply)
    except InvalidReward as error:
        reply({"invalid": str(error)})
        return
    except SandboxUnavailable as error:
        reply({"unavailable": str(error)})
        return
    reply({"ready": True})
    with contextlib.suppress(CallerGone):
        serve(receive, work, reply)


def _prepared(rules: Sequence[Rule], requests: BinaryIO, reply: Callable[[Json], None]) -> tuple[Work, Receive]:
    """Return how a worker with these rules computes answers and receives requests."""
    if confined(rules):
        return IsolatedEvaluator(rules, requests.fileno(), lambda pid: reply({"process": pid})), partial(read, requests)
    work = InProcessEvaluator(rules)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=frames, args=(requests, inbox), daemon=True).start()
    return work, inbox.get


if __name__ == "__main__":
    main()
