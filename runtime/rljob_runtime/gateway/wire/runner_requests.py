"""Runner requests: the bodies that runners of environments send, and the answers to them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from rljob_runtime.gateway.errors import GatewayError, bad
from rljob_runtime.gateway.wire.fields import Json, call_id, flag, parse_body, refuse_unknown, whole
from rljob_runtime.protocols.environments import (
    MOST_ANSWER,
    MOST_CALLS,
    MOST_METRIC_NAME,
    MOST_METRICS,
    RUNNERS_LIMITS,
    RUNNERS_PARTS,
    Assignment,
    EpisodeReport,
    Resume,
    ToolCall,
)
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt

E = TypeVar("E", bound=StrEnum)

RUNNER_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
WAIT_SECONDS = 20.0
MOST_WAIT_SECONDS = 60.0
MOST_EPISODES = 4096
MOST_LEASED = 64
"""Most episodes of one lease. Their records are in one answer."""
MOST_TEXTS = 5 * MOST_EPISODES
"""Texts of a request: those of a heartbeat have four for each episode. They are read in the event loop."""
MOST_DETAIL_CHARACTERS = 4000
MOST_KEY_CHARACTERS = 512
MOST_ATTEMPT = 2**63 - 1
"""Largest number that the store keeps."""
ATTEMPT = ("episode", "attempt", "resumption")
"""Fields that name an attempt."""
CALL_ID = re.compile(r"call_(\d{1,18})_(\d{1,4})")
"""As `call_id` writes it."""


@dataclass(frozen=True)
class LeaseRequest:
    """A runner asks for episodes, and waits for one so long.

    `most`: it takes so many. None: one, as runners of before `most` ask. `journals`: it goes on with attempts
    of others, and reports the calls of its tools, where the loop is its own."""

    runner: str
    wait_seconds: float
    most: int | None = None
    journals: bool = False


@dataclass(frozen=True)
class HeartbeatRequest:
    """A runner lives and runs these attempts."""

    runner: str
    episodes: Sequence[EpisodeAttempt]


@dataclass(frozen=True)
class CalledRequest:
    """A runner has executed a call of a tool."""

    runner: str
    episode: EpisodeAttempt
    call: ToolCall


@dataclass(frozen=True)
class DoneRequest:
    """A runner reports the end of an attempt."""

    runner: str
    episode: EpisodeAttempt
    report: EpisodeReport


def parse_lease(body: bytes, environment: str) -> LeaseRequest:
    """Return a lease request. `environment`: that of the key. Raises `GatewayError`."""
    given = parse_body(body, MOST_TEXTS)
    refuse_unknown(given, ("environment", "runner", "waitSeconds", "most", "journals"))
    if given.get("environment") not in (None, environment):
        text = f"the runner key opens the environment {environment!r} only"
        raise GatewayError(403, "other_environment", text, "environment")
    seconds = _number(given.get("waitSeconds", WAIT_SECONDS), "waitSeconds")
    if not 0 <= seconds <= MOST_WAIT_SECONDS:
        raise bad(f"waitSeconds is {seconds:g}; 0 to {MOST_WAIT_SECONDS:g} would be right", "waitSeconds")
    most = whole(given.get("most"), "most")
    journals = flag(given.get("journals"), "journals")
    return LeaseRequest(_runner(given), seconds, most and min(most, MOST_LEASED), journals)


def parse_heartbeat(body: bytes) -> HeartbeatRequest:
    """Return a heartbeat. Raises `GatewayError`."""
    given = parse_body(body, MOST_TEXTS)
    refuse_unknown(given, ("runner", "episodes"))
    episodes = given.get("episodes")
    if not isinstance(episodes, list) or len(episodes) > MOST_EPISODES:
        raise bad(f"episodes: a list of at most {MOST_EPISODES} attempts would be right", "episodes")
    found = []
    for index, one in enumerate(episodes):
        where = f"episodes[{index}]"
        if not isinstance(one, dict):
            raise bad(f"{where}: an object with episode and attempt would be right", where)
        refuse_unknown(one, ATTEMPT, f"{where}.")
        found.append(_attempt(one, f"{where}."))
    return HeartbeatRequest(_runner(given), found)


def parse_called(body: bytes) -> CalledRequest:
    """Return the report of a call of a tool. Raises `GatewayError`."""
    given = parse_body(body, MOST_TEXTS)
    refuse_unknown(given, ("runner", *ATTEMPT, "call", "name", "arguments", "observation", "seconds"))
    texts = {name: given.get(name) for name in ("name", "arguments", "observation")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise bad(f"{name}: a text would be right", name)
    found = CALL_ID.fullmatch(str(given.get("call")))
    if found is None or int(found[2]) >= MOST_CALLS:
        raise bad(f"call is {str(given.get('call'))[:100]!r}, which is the id of no call", "call")
    seconds = None if given.get("seconds") is None else _number(given["seconds"], "seconds")
    if seconds is not None and seconds < 0:
        raise bad(f"seconds is {seconds:g}; 0 or more would be right", "seconds")
    said = {name: str(text) for name, text in texts.items()}
    call = ToolCall(int(found[1]), int(found[2]), **said, seconds=seconds)
    return CalledRequest(_runner(given), _attempt(given), call)


def parse_done(body: bytes) -> DoneRequest:
    """Return the report of an attempt's end. Raises `GatewayError`."""
    given = parse_body(body, MOST_TEXTS)
    refuse_unknown(given, ("runner", *ATTEMPT, "reward", "metrics", "failed", "detail", "limit", "answer"))
    reward = None if given.get("reward") is None else _number(given["reward"], "reward")
    failed, limit = _one_of(RUNNERS_PARTS, given, "failed"), _one_of(RUNNERS_LIMITS, given, "limit")
    answer = given.get("answer")
    if answer is not None and (not isinstance(answer, str) or len(answer) > MOST_ANSWER):
        raise bad(f"answer: a text of at most {MOST_ANSWER} characters would be right", "answer")
    for name, value in (("reward", reward), ("limit", limit), ("answer", answer)):
        if failed is not None and value is not None:
            raise bad(f"an attempt that a failure of ours ended has no {name}; leave one of the two out", name)
    detail = given.get("detail") or ""
    if not isinstance(detail, str) or len(detail) > MOST_DETAIL_CHARACTERS:
        raise bad(f"detail: a text of at most {MOST_DETAIL_CHARACTERS} characters would be right", "detail")
    report = EpisodeReport(reward, _metrics(given.get("metrics")), failed, detail, limit, answer)
    return DoneRequest(_runner(given), _attempt(given), report)


def assignment_json(assignment: Assignment, seconds_left: float, access: Json) -> Json:
    """Return what a runner receives. `access`: address, key and model for the harness.

    `secondsLeft` says the deadline without a clock: that of a runner's machine may differ.
    """
    return {
        **attempt_json(assignment.episode),
        "environment": assignment.environment,
        "record": dict(assignment.record),
        "messages": [dict(message) for message in assignment.messages],
        "deadline": assignment.deadline,
        "secondsLeft": seconds_left,
        **({} if assignment.resume is None else {"resume": _resume_json(assignment.resume)}),
        **({"stateless": True} if assignment.stateless else {}),
        **({} if assignment.traceparent is None else {"traceparent": assignment.traceparent}),
        **access,
    }


def _resume_json(resume: Resume) -> Json:
    calls: list[Json] = [
        {"id": call_id(one.node, one.place), "name": one.name}
        | {"arguments": one.arguments, "observation": one.observation, "seconds": one.seconds}
        for one in resume.calls
    ]
    # The body as it was sent: its digest finds the recorded answer.
    return {"request": resume.request.decode() or None, "calls": calls, "replays": resume.replays}


def attempt_json(episode: EpisodeAttempt) -> Json:
    """Return an attempt as runners write it. A `resumption` of 0 is left out.

    Runners that do not know this field never receive an attempt that was resumed.
    """
    found: Json = {"episode": str(episode.key), "attempt": episode.attempt}
    return found | ({"resumption": episode.resumption} if episode.resumption else {})


def _one_of(allowed: Sequence[E], given: Json, name: str) -> E | None:
    """Return a field that has one of these values, or None where there is none."""
    value = given.get(name)
    if value is not None and value not in allowed:
        right = " or ".join(repr(str(one)) for one in allowed)
        raise bad(f"{name} is {str(value)[:100]!r}; {right} would be right", name)
    return next((one for one in allowed if one == value), None)


def _runner(given: Json) -> str:
    runner = given.get("runner")
    if not isinstance(runner, str) or not RUNNER_NAME.fullmatch(runner):
        raise bad("runner: 1 to 128 letters, digits and any of ._:- would be right", "runner")
    return runner


def _attempt(given: Json, where: str = "") -> EpisodeAttempt:
    text, attempt = given.get("episode"), whole(given.get("attempt"), f"{where}attempt")
    resumption = whole(given.get("resumption"), f"{where}resumption", 0) or 0
    if attempt is None or attempt > MOST_ATTEMPT:
        raise bad(f"{where}attempt: the number of the attempt would be right", f"{where}attempt")
    if resumption > MOST_ATTEMPT:
        raise bad(f"{where}resumption: a number as the gateway gave it would be right", f"{where}resumption")
    try:
        key = TrajectoryKey.parse(text) if isinstance(text, str) and len(text) <= MOST_KEY_CHARACTERS else None
    except ValueError:
        key = None
    if key is None or str(key) != text:
        raise bad(f"{where}episode is {str(text)[:100]!r}, which names no episode", f"{where}episode")
    return EpisodeAttempt(key, attempt, resumption)


def _metrics(given: Any) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > MOST_METRICS:
        raise bad(f"metrics: an object of at most {MOST_METRICS} numbers would be right", "metrics")
    for name in given:
        if not 0 < len(name) <= MOST_METRIC_NAME:
            raise bad(f"metrics: names of 1 to {MOST_METRIC_NAME} characters would be right", "metrics")
    return {name: _number(value, f"metrics.{name}") for name, value in given.items()}


def _number(value: Any, param: str) -> float:
    """Return a finite number: JSON's 1e999 is none, and neither is a whole number beyond all floats."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise bad(f"{param} is {str(value)[:40]!r}; a finite number would be right", param)
