"""Messages: calls of the coordinator, and their answers, as frames.

    gateway      hello {protocol}                                          cancel {id}
                 turn, history, lease, heartbeat, called, done {id, …}
    coordinator  welcome {protocol}, or refused {text}
                 part {id, …}: one value of an answer                      end {id}: the answer is complete
                 error {id, error, text}: the call raised this error

A history has one part a turn, and a lease one an episode, so no frame is longer than one of these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_runtime.gateway.link.frames import (
    LOGPROB,
    TOKEN,
    Fields,
    Frame,
    FrameError,
    blobs,
    flag,
    has_bytes,
    is_whole,
    listed,
    logprobs_of,
    mapped,
    number,
    text,
    to_bytes,
    tokens_of,
    whole,
)
from rljob_runtime.protocols.environments import (
    Assignment,
    EpisodeReport,
    FailedPart,
    HarnessLimit,
    Resume,
    ToolCall,
)
from rljob_runtime.protocols.errors import PeerError, PeerGone, PeerTimeout
from rljob_runtime.protocols.trajectory import FinishReason, TrajectoryKey
from rljob_runtime.protocols.turns import (
    AttemptEnded,
    EpisodeAttempt,
    RecordedTurn,
    StoredTurn,
    TurnBounds,
    TurnCall,
    TurnRefused,
)

PROTOCOL = 6
ERRORS: Mapping[str, type[PeerError]] = {
    kind.__name__: kind for kind in (AttemptEnded, TurnRefused, PeerGone, PeerTimeout)
}
"""Errors that a call raises at the gateway as the coordinator raised them."""
MOST_ERROR_CHARACTERS = 4000


@dataclass(frozen=True)
class HistoryCall:
    """See `Turns.history`."""

    episode: EpisodeAttempt
    newest: bool = False


@dataclass(frozen=True)
class LeaseCall:
    """See `Environments.lease`."""

    environment: str
    runner: str
    wait_seconds: float
    most: int
    journals: bool


@dataclass(frozen=True)
class HeartbeatCall:
    """See `Environments.heartbeat`."""

    environment: str
    runner: str
    episodes: Sequence[EpisodeAttempt]


@dataclass(frozen=True)
class CalledCall:
    """See `Environments.called`."""

    environment: str
    runner: str
    episode: EpisodeAttempt
    call: ToolCall


@dataclass(frozen=True)
class DoneCall:
    """See `Environments.done`."""

    environment: str
    runner: str
    episode: EpisodeAttempt
    report: EpisodeReport


Call = TurnCall | HistoryCall | LeaseCall | HeartbeatCall | CalledCall | DoneCall
Value = RecordedTurn | StoredTurn | Assignment | tuple[EpisodeAttempt, ...]
"""A part of an answer."""


# --- calls -----------------------------------------------------------------------------------------------------------


def call_frame(number_of_call: int, call: Call) -> Frame:
    """Return the frame of a call."""
    id = {"id": number_of_call}
    match call:
        case TurnCall():
            fields = {**id, "episode": _attempt(call.episode), "digest": call.digest, "retry": call.retry}
            fields |= {"bounds": _bounds(call.bounds), "deadline": call.deadline}
            fields |= {"reencoded": call.reencoded_tokens}
            return Frame("turn", fields, (to_bytes(TOKEN, call.token_ids), call.body))
        case HistoryCall(episode, newest):
            return Frame("history", {**id, "episode": _attempt(episode), "newest": newest})
        case LeaseCall(environment, runner, seconds, most, journals):
            fields = {**id, "environment": environment, "runner": runner, "seconds": seconds}
            return Frame("lease", {**fields, "most": most, "journals": journals})
        case HeartbeatCall(environment, runner, episodes):
            fields = {**id, "environment": environment, "runner": runner}
            return Frame("heartbeat", {**fields, "episodes": [_attempt(one) for one in episodes]})
        case CalledCall(environment, runner, episode, tool_call):
            fields = {**id, "environment": environment, "runner": runner, "episode": _attempt(episode)}
            return Frame("called", {**fields, "call": _tool_call(tool_call)})
        case DoneCall(environment, runner, episode, report):
            fields = {**id, "environment": environment, "runner": runner, "episode": _attempt(episode)}
            fields |= {"reward": report.reward, "limit": report.limit, "answer": report.answer}
            fields |= {"metrics": dict(report.metrics), "failed": report.failed, "detail": report.detail}
            return Frame("done", fields)


def call_of(frame: Frame) -> Call:
    """Return the call of a frame. Raises `FrameError`."""
    fields = frame.fields
    if frame.kind == "turn":
        tokens, body = blobs(frame, 2)
        return TurnCall(
            _attempt_of(fields.get("episode")),
            text(fields, "digest"),
            flag(fields, "retry"),
            tokens_of(tokens),
            _bounds_of(mapped(fields, "bounds")),
            body,
            number(fields, "deadline"),
            whole(fields, "reencoded"),
        )
    blobs(frame, 0)
    match frame.kind:
        case "history":
            return HistoryCall(_attempt_of(fields.get("episode")), flag(fields, "newest"))
        case "lease":
            environment, runner = text(fields, "environment"), text(fields, "runner")
            most, journals = whole(fields, "most"), flag(fields, "journals")
            return LeaseCall(environment, runner, number(fields, "seconds"), most, journals)
        case "heartbeat":
            episodes = tuple(map(_attempt_of, listed(fields, "episodes")))
            return HeartbeatCall(text(fields, "environment"), text(fields, "runner"), episodes)
        case "called":
            environment, runner = text(fields, "environment"), text(fields, "runner")
            call = _tool_call_of(fields.get("call"))
            return CalledCall(environment, runner, _attempt_of(fields.get("episode")), call)
        case "done":
            environment, runner = text(fields, "environment"), text(fields, "runner")
            return DoneCall(environment, runner, _attempt_of(fields.get("episode")), _report_of(fields))
    raise FrameError(f"a frame of the kind {frame.kind[:40]!r} is no call")


def _report_of(fields: Fields) -> EpisodeReport:
    failed, limit = fields.get("failed"), fields.get("limit")
    if failed is not None and failed not in list(FailedPart):
        raise FrameError(f"failed is {str(failed)[:100]!r}")
    if limit is not None and limit not in list(HarnessLimit):
        raise FrameError(f"limit is {str(limit)[:100]!r}")
    metrics = mapped(fields, "metrics")
    return EpisodeReport(
        None if fields.get("reward") is None else number(fields, "reward"),
        {name: number(metrics, name) for name in metrics},
        None if failed is None else FailedPart(failed),
        text(fields, "detail"),
        None if limit is None else HarnessLimit(limit),
        None if fields.get("answer") is None else text(fields, "answer"),
    )


# --- answers ---------------------------------------------------------------------------------------------------------


def part_frame(number_of_call: int, value: Value) -> Frame:
    """Return the frame of a part of an answer."""
    id = {"id": number_of_call}
    match value:
        case RecordedTurn():
            return Frame("part", {**id, **_turn_fields(value)}, _turn_blobs(value))
        case StoredTurn(tokens, body, turn):
            return Frame("part", {**id, **_turn_fields(turn)}, (*_turn_blobs(turn), to_bytes(TOKEN, tokens), body))
        case Assignment():
            fields = {**id, "episode": _attempt(value.episode), "environment": value.environment}
            fields |= {"record": dict(value.record), "deadline": value.deadline}
            fields |= {"messages": [dict(message) for message in value.messages], "traceparent": value.traceparent}
            fields |= {"stateless": value.stateless}
            if value.resume is None:
                return Frame("part", fields)
            calls = json.dumps([_tool_call(one) for one in value.resume.calls]).encode()
            return Frame("part", {**fields, "replays": value.resume.replays}, (value.resume.request, calls))
        case _:
            return Frame("part", {**id, "episodes": [_attempt(one) for one in value]})


def turn_of(frame: Frame) -> RecordedTurn:
    """Return the turn of a part. Raises `FrameError`."""
    tokens, logprobs = blobs(frame, 2)
    return _turn_of(frame.fields, tokens, logprobs)


def stored_turn_of(frame: Frame) -> StoredTurn:
    """Return the turn of a part of a history. Raises `FrameError`."""
    tokens, logprobs, prompt, body = blobs(frame, 4)
    return StoredTurn(tokens_of(prompt), body, _turn_of(frame.fields, tokens, logprobs))


def assignment_of(frame: Frame) -> Assignment:
    """Return the assignment of a part. Raises `FrameError`."""
    fields = frame.fields
    messages = listed(fields, "messages")
    if not all(isinstance(one, dict) and all(isinstance(word, str) for word in one.values()) for one in messages):
        raise FrameError("messages: a list of objects with texts would be right")
    return Assignment(
        _attempt_of(fields.get("episode")),
        text(fields, "environment"),
        mapped(fields, "record"),
        tuple(messages),
        number(fields, "deadline"),
        _resume_of(frame) if "replays" in fields else None,
        None if fields.get("traceparent") is None else text(fields, "traceparent"),
        flag(fields, "stateless"),
    )


def _resume_of(frame: Frame) -> Resume:
    request, calls = blobs(frame, 2)
    try:
        found = json.loads(calls)
    except ValueError:
        raise FrameError("calls: a list of calls would be right") from None
    return Resume(request, tuple(map(_tool_call_of, found)), flag(frame.fields, "replays"))


def attempts_of(frame: Frame) -> tuple[EpisodeAttempt, ...]:
    """Return the attempts of a part. Raises `FrameError`."""
    return tuple(map(_attempt_of, listed(frame.fields, "episodes")))


def error_frame(number_of_call: int, error: PeerError) -> Frame:
    """Return the frame of an error, one of `ERRORS`."""
    fields = {"id": number_of_call, "error": type(error).__name__, "text": str(error)[:MOST_ERROR_CHARACTERS]}
    return Frame("error", fields)


def error_of(frame: Frame) -> PeerError:
    """Return the error of a frame. Raises `FrameError`."""
    kind = ERRORS.get(text(frame.fields, "error"))
    if kind is None:
        raise FrameError(f"the error {str(frame.fields['error'])[:40]!r} is none of the link")
    return kind(text(frame.fields, "text"))


# --- values ----------------------------------------------------------------------------------------------------------


def _attempt(episode: EpisodeAttempt) -> list[Any]:
    return [str(episode.key), episode.attempt, episode.resumption]


def _attempt_of(value: object) -> EpisodeAttempt:
    match value:
        case [str(key), int(attempt), int(resumption)] if is_whole(attempt) and is_whole(resumption):
            try:
                found = TrajectoryKey.parse(key)
            except ValueError:
                raise FrameError(f"{key[:100]!r} names no response") from None
            return EpisodeAttempt(found, attempt, resumption)
    raise FrameError(f"{str(value)[:100]!r} is no attempt")


def _tool_call(call: ToolCall) -> list[Any]:
    return [call.node, call.place, call.name, call.arguments, call.observation, call.seconds]


def _tool_call_of(value: object) -> ToolCall:
    match value:
        case [int(node), int(place), str(name), str(arguments), str(seen), int() | float() | None as seconds]:
            if is_whole(node) and is_whole(place) and has_bytes(name):
                return ToolCall(node, place, name, arguments, seen, seconds)
    raise FrameError(f"{str(value)[:100]!r} is no call of a tool")


def _bounds(bounds: TurnBounds) -> dict[str, Any]:
    return {
        "max_tokens": bounds.max_tokens,
        "stop": list(bounds.stop_strings),
        "stop_token_ids": list(bounds.stop_token_ids),
    }


def _bounds_of(fields: Fields) -> TurnBounds:
    strings, tokens = listed(fields, "stop"), listed(fields, "stop_token_ids")
    if not all(isinstance(one, str) for one in strings) or not all(type(one) is int for one in tokens):
        raise FrameError("stop: texts, and stop_token_ids: whole numbers would be right")
    return TurnBounds(whole(fields, "max_tokens"), tuple(strings), tuple(tokens))


def _turn_fields(turn: RecordedTurn) -> dict[str, Any]:
    return {
        "node": turn.node,
        "version": turn.weight_version,
        "finish": turn.finish_reason,
        "stored_at": turn.stored_at,
        "forked": turn.forked,
        "replayed": turn.replayed,
    }


def _turn_blobs(turn: RecordedTurn) -> tuple[bytes, bytes]:
    return to_bytes(TOKEN, turn.token_ids), to_bytes(LOGPROB, turn.logprobs)


def _turn_of(fields: Fields, tokens: bytes, logprobs: bytes) -> RecordedTurn:
    finish = text(fields, "finish")
    if finish not in list(FinishReason):
        raise FrameError(f"finish is {finish[:40]!r}")
    return RecordedTurn(
        whole(fields, "node"),
        tokens_of(tokens),
        logprobs_of(logprobs),
        whole(fields, "version"),
        FinishReason(finish),
        number(fields, "stored_at"),
        flag(fields, "forked"),
        flag(fields, "replayed"),
    )
