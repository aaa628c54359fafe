"""Calls and answers come out of their frames as they went in, bit by bit; other bytes raise one kind of error."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.gateway.link import messages
from rljob_runtime.gateway.link.frames import (
    MAGIC,
    PREFIX,
    Frame,
    FrameError,
    FrameLimits,
    FrameTooLong,
    sizes_of,
    whole,
)
from rljob_runtime.gateway.link.messages import (
    ERRORS,
    Call,
    CalledCall,
    DoneCall,
    HeartbeatCall,
    HistoryCall,
    LeaseCall,
    Value,
    call_frame,
    call_of,
    error_frame,
    error_of,
    part_frame,
)
from rljob_runtime.protocols.environments import (
    Assignment,
    EpisodeReport,
    FailedPart,
    HarnessLimit,
    Resume,
    ToolCall,
)
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn, StoredTurn, TurnBounds, TurnCall
from tests.support.examples import examples

LIMITS = FrameLimits()
WHOLE = st.integers(0, 2**63 - 1)
NUMBERS = st.floats(allow_nan=False)
NAMES = st.text(max_size=20)
KEYS = st.builds(
    TrajectoryKey,
    st.builds(PromptKey, st.integers(0, 99), WHOLE, st.sampled_from(["", "maths", "evaluation:held out", "a.b/c"])),
    st.integers(0, 99),
)
ATTEMPTS = st.builds(EpisodeAttempt, KEYS, WHOLE, WHOLE)
TOKENS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20).map(lambda found: array("i", found))
LOGPROBS = st.lists(st.floats(width=32, allow_nan=False), max_size=20).map(lambda found: array("f", found))
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | st.text(max_size=9) | st.sampled_from(["kind", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
BOUNDS = st.builds(
    TurnBounds, WHOLE, st.lists(NAMES, max_size=3).map(tuple), st.lists(st.integers(0, 999), max_size=3).map(tuple)
)
REPORTS = st.builds(
    EpisodeReport,
    st.none() | NUMBERS,
    st.dictionaries(NAMES, NUMBERS, max_size=3),
    st.none() | st.sampled_from(FailedPart),
    NAMES,
    st.none() | st.sampled_from(HarnessLimit),
    st.none() | NAMES,
)
TURNS = st.builds(
    RecordedTurn,
    WHOLE,
    TOKENS,
    LOGPROBS,
    WHOLE,
    st.sampled_from(FinishReason),
    NUMBERS,
    st.booleans(),
    st.booleans(),
)
TOOL_CALLS = st.builds(ToolCall, WHOLE, WHOLE, NAMES, NAMES, NAMES | st.just("\ud800"), st.none() | NUMBERS)
RESUMES = st.builds(Resume, st.binary(max_size=40), st.lists(TOOL_CALLS, max_size=3).map(tuple), st.booleans())
CALLS: st.SearchStrategy[Call] = st.one_of(
    st.builds(TurnCall, ATTEMPTS, NAMES, st.booleans(), TOKENS, BOUNDS, st.binary(max_size=40), NUMBERS, WHOLE),
    st.builds(HistoryCall, ATTEMPTS, st.booleans()),
    st.builds(LeaseCall, NAMES, NAMES, NUMBERS, WHOLE, st.booleans()),
    st.builds(HeartbeatCall, NAMES, NAMES, st.lists(ATTEMPTS, max_size=3).map(tuple)),
    st.builds(CalledCall, NAMES, NAMES, ATTEMPTS, TOOL_CALLS),
    st.builds(DoneCall, NAMES, NAMES, ATTEMPTS, REPORTS),
)
MESSAGES = st.lists(st.dictionaries(NAMES, NAMES, max_size=2), max_size=3).map(tuple)
READ: dict[type, Callable[[Frame], Any]] = {
    RecordedTurn: messages.turn_of,
    StoredTurn: messages.stored_turn_of,
    Assignment: messages.assignment_of,
    tuple: messages.attempts_of,
}
VALUES: st.SearchStrategy[Value] = st.one_of(
    TURNS,
    st.builds(StoredTurn, TOKENS, st.binary(max_size=40), TURNS),
    st.builds(
        Assignment,
        ATTEMPTS,
        NAMES,
        st.dictionaries(NAMES, JSON, max_size=3),
        MESSAGES,
        NUMBERS,
        st.none() | RESUMES,
        st.none() | NAMES,
        st.booleans(),
    ),
    st.lists(ATTEMPTS, max_size=3).map(tuple),
)
FRAMES = st.one_of(
    st.builds(call_frame, WHOLE, CALLS),
    st.builds(part_frame, WHOLE, VALUES),
    st.builds(lambda kind: error_frame(1, kind("text")), st.sampled_from(list(ERRORS.values()))),
)


def passed(frame: Frame) -> Frame:
    """Return a frame as the other end receives it."""
    data = frame.encode(LIMITS)
    header, payload = sizes_of(data[: PREFIX.size], LIMITS)
    assert len(data) == PREFIX.size + header + payload
    return Frame.decode(data[PREFIX.size :][:header], data[PREFIX.size + header :])


@given(WHOLE, CALLS)
@settings(deadline=None)
def test_a_call_is_what_was_sent(number: int, call: Call) -> None:
    received = passed(call_frame(number, call))
    assert received.fields["id"] == number
    assert call_of(received) == call


@given(WHOLE, VALUES)
@settings(deadline=None)
def test_a_part_of_an_answer_is_what_was_sent(number: int, value: Value) -> None:
    received = passed(part_frame(number, value))
    assert received.fields["id"] == number
    assert READ[type(value)](received) == value


def test_logprobs_keep_every_bit() -> None:
    bits = [0, 1, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001, 0x3DCCCCCD]
    given = array("f", struct.pack(f"={len(bits)}I", *bits))
    turn = RecordedTurn(1, array("i", range(len(bits))), given, 0, FinishReason.LENGTH, 0.0)
    received = messages.turn_of(passed(part_frame(0, turn)))
    assert isinstance(received.logprobs, array)
    assert received.logprobs.tobytes() == given.tobytes()


@pytest.mark.parametrize("kind", ERRORS.values())
def test_an_error_is_what_was_raised(kind: type[Exception]) -> None:
    found = error_of(passed(error_frame(3, kind("why"))))  # type: ignore[arg-type]
    assert type(found) is kind
    assert str(found) == "why"


def test_a_frame_beyond_a_limit_is_neither_sent_nor_received() -> None:
    frame = Frame("turn", {"id": 1}, (b"12345",))
    header = len(json.dumps({"id": 1, "kind": "turn", "blobs": [5]}, separators=(",", ":")))
    data = frame.encode(FrameLimits(header, 5))
    for limits in (FrameLimits(header - 1, 5), FrameLimits(header, 4)):
        with pytest.raises(FrameTooLong):
            frame.encode(limits)
        with pytest.raises(FrameError, match="announced"):
            sizes_of(data[: PREFIX.size], limits)


# --- what another end may send ---------------------------------------------------------------------------------------

WRONG: st.SearchStrategy[Any] = JSON | st.sampled_from([True, -1, 2**64, 10**400, float("nan"), [["0.0.0", 1]], {}])


def total(read: Callable[[], object]) -> None:
    """Read something; only one kind of error may come out."""
    try:
        read()
    except FrameError:
        return


@given(st.binary(max_size=60), st.binary(max_size=20))
@settings(max_examples=examples(300), deadline=None)
def test_reading_bytes_raises_one_kind_of_error(header: bytes, payload: bytes) -> None:
    total(lambda: Frame.decode(header, payload))
    total(lambda: sizes_of((MAGIC + header + bytes(12))[: PREFIX.size], LIMITS))


@given(FRAMES, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_frame_with_other_content_raises_one_kind_of_error(frame: Frame, data: st.DataObject) -> None:
    fields = dict(frame.fields)
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
        fields[name] = data.draw(WRONG)
    blobs = data.draw(st.just(tuple(frame.blobs)) | st.lists(st.binary(max_size=9), max_size=4).map(tuple))
    kind = data.draw(st.sampled_from([frame.kind, "turn", "history", "lease", "heartbeat", "done", "other"]))
    changed = passed(Frame(kind, fields, blobs))
    for read in (call_of, error_of, *READ.values()):
        total(lambda read=read: read(changed))  # type: ignore[misc]
    total(lambda: whole(changed.fields, "id"))


@pytest.mark.parametrize(
    "header",
    [b"[]", b"nothing", b"{}", b'{"kind": 1, "blobs": []}', b'{"kind": "x", "blobs": [-1]}', b"[" * 100_000],
)
def test_a_header_that_breaks_a_rule_is_no_frame(header: bytes) -> None:
    with pytest.raises(FrameError):
        Frame.decode(header, b"")


@pytest.mark.parametrize("name", ["digest", "environment", "runner", "detail"])
def test_half_a_character_is_no_text(name: str) -> None:
    """JSON writes it, and the coordinator's store would end by it."""
    attempt = EpisodeAttempt(TrajectoryKey(PromptKey(0, 1), 0), 1)
    calls: list[Call] = [
        TurnCall(attempt, "digest", False, array("i", [1]), TurnBounds(1), b"{}", 1.0),
        DoneCall("environment", "runner", attempt, EpisodeReport(detail="detail")),
    ]
    read = 0
    for call in calls:
        frame = call_frame(7, call)
        assert call_of(frame) == call
        if name in frame.fields:
            read += 1
            with pytest.raises(FrameError, match=name):
                call_of(Frame(frame.kind, {**frame.fields, name: "half a \ud83d"}, frame.blobs))
    assert read == 1


@pytest.mark.parametrize("name", ["failed", "limit"])
def test_a_report_with_another_part_or_limit_is_no_frame(name: str) -> None:
    attempt = EpisodeAttempt(TrajectoryKey(PromptKey(0, 1), 0), 1)
    frame = call_frame(7, DoneCall("environment", "runner", attempt, EpisodeReport()))
    with pytest.raises(FrameError, match=f"{name} is 'forks'"):
        call_of(Frame(frame.kind, {**frame.fields, name: "forks"}, frame.blobs))


def test_half_a_character_is_no_name_of_a_tool_and_may_be_observed() -> None:
    """What a tool answers is stored as JSON, and its name as it is."""
    attempt = EpisodeAttempt(TrajectoryKey(PromptKey(0, 1), 0), 1)
    seen = CalledCall("environment", "runner", attempt, ToolCall(1, 0, "add", "{}", "half a \ud83d"))
    assert call_of(call_frame(7, seen)) == seen
    with pytest.raises(FrameError, match="no call of a tool"):
        call_of(call_frame(7, CalledCall("environment", "runner", attempt, ToolCall(1, 0, "half a \ud83d", "{}", ""))))
