"""Texts in processes of their own: the same answers, and one that costs too much delays no other."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from rljob_runtime.gateway.errors import GatewayError, bad
from rljob_runtime.gateway.link.frames import Frame, FrameLimits
from rljob_runtime.gateway.text import forked_text
from rljob_runtime.gateway.text.forked_text import ForkedText, TooCostly, bounded
from rljob_runtime.gateway.text.known_text import KnownText
from rljob_runtime.gateway.text.suffix_text import SuffixText
from rljob_runtime.gateway.text.tool_calls import ToolCall
from rljob_runtime.gateway.text.turn_text import ReplyText, TurnText, TurnTokens
from rljob_runtime.gateway.wire.fields import Json
from tests.support.gateway.light_tokenizer import CHATML, light_tokenizer, render_of
from tests.support.gateway.site import EPISODE, make_site, message, user

TURN = TurnTokens([1, 2], [3])
COSTLY = "```json" + " \n" * 1_100 + "a"
"""Seconds of work for the expression by which a renderer finds a call; twice the text costs eight times as much."""


class StandInText:
    """A text whose messages say what it does."""

    def first(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[int]:
        self._do(messages[-1]["content"])
        return [len(messages), len(tools)]

    def following(self, turn: TurnTokens, messages: Sequence[Json], tools: Sequence[Json]) -> list[int] | None:
        self._do(messages[-1]["content"])
        return None if messages[-1]["content"] == "another" else [*turn.prompt, *turn.sampled, 9]

    def reply(self, turn: TurnTokens, tools: Sequence[Json], calls: bool) -> ReplyText:
        if turn.sampled == [0]:
            re.search(r"```json\s*(.*?)\s*```", COSTLY, re.DOTALL)
        if turn.sampled == [7]:
            raise KeyError("7")
        return ReplyText("é", (ToolCall("sum", '{"a": 1}'),) if calls else (), "because", len(turn.prompt))

    def _do(self, said: str) -> None:
        if said == "costly":
            re.search(r"```json\s*(.*?)\s*```", COSTLY, re.DOTALL)
        if said == "refused":
            raise bad("no such message", "messages", "unsupported")


@contextmanager
def forked(text: TurnText | None = None, processes: int = 1, seconds: float = 0.2) -> Iterator[ForkedText]:
    with ForkedText(text or StandInText(), processes, seconds) as found:
        yield found


def test_answers_are_those_of_the_text() -> None:
    with forked() as text:
        assert text.first([user("a"), user("b")], [{}]) == [2, 1]
        assert text.following(TURN, [user("a")], []) == [1, 2, 3, 9]
        assert text.following(TURN, [user("another")], []) is None
        assert text.reply(TURN, [], True) == ReplyText("é", (ToolCall("sum", '{"a": 1}'),), "because", 2)
        assert text.reply(TURN, [], False) == ReplyText("é", (), "because", 2)


def test_a_known_model_says_the_same_in_a_process_of_its_own() -> None:
    tokenizer = light_tokenizer()
    own = KnownText(tokenizer, "qwen3")  # type: ignore[arg-type]
    with forked(own) as text:
        prompt = own.first([user("1+?")], [])
        assert text.first([user("1+?")], []) == prompt
        turn = TurnTokens(prompt, [*tokenizer.spelled("ok"), tokenizer.end])
        assert text.reply(turn, [], True) == own.reply(turn, [], True)
        assert text.following(turn, [user("2")], []) == own.following(turn, [user("2")], [])


def test_only_a_renderer_needs_processes_of_its_own() -> None:
    tokenizer = light_tokenizer()
    suffix = SuffixText(tokenizer, render_of(CHATML), [])  # type: ignore[arg-type]
    with bounded(suffix, 2) as (text, stats):
        assert text is suffix
        assert stats.texts_given_up == 0
    with bounded(KnownText(tokenizer, "qwen3"), 2) as (text, stats):  # type: ignore[arg-type]
        assert isinstance(text, ForkedText)
        assert stats is text.stats


def test_errors_are_those_of_the_text() -> None:
    with forked() as text:
        with pytest.raises(GatewayError) as refused:
            text.first([user("refused")], [])
        assert (refused.value.status, refused.value.code, refused.value.param) == (400, "unsupported", "messages")
        with pytest.raises(RuntimeError, match="KeyError"):
            text.reply(TurnTokens([], [7]), [], True)
        assert text.stats.texts_given_up == 0


def test_a_text_that_costs_too_much_is_given_up_and_the_next_one_is_read() -> None:
    with forked() as text:
        with pytest.raises(TooCostly):
            text.reply(TurnTokens([], [0]), [], True)
        for ask in (lambda: text.first([user("costly")], []), lambda: text.following(TURN, [user("costly")], [])):
            with pytest.raises(GatewayError) as refused:
                ask()
            assert refused.value.status == 400
        assert text.reply(TURN, [], False).content == "é"
        assert text.stats.texts_given_up == 3


async def test_the_event_loop_goes_on_while_a_text_is_read() -> None:
    with forked() as text:
        turns = 0

        async def watch() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.001)
                turns += 1

        watching = asyncio.create_task(watch())
        reads = asyncio.get_running_loop().run_in_executor(None, lambda: text.reply(TurnTokens([], [0]), [], True))
        with pytest.raises(TooCostly):
            await reads
        watching.cancel()
        assert turns > 10, "a thread that reads it has the interpreter for itself, and the loop no turn"


async def test_a_reply_that_costs_too_much_says_nothing() -> None:
    class Costly(StandInText):
        def reply(self, turn: TurnTokens, tools: Sequence[Json], calls: bool) -> ReplyText:
            return super().reply(TurnTokens([], [0]), tools, calls)

    with forked(Costly()) as text:
        site = make_site(text=text)
        assert message(await site.chat([user("a")]))["content"] == ""
        assert site.gateway.stats.malformed_calls == 1
        assert site.coordinator.loss_tokens(EPISODE), "the turn is the policy's all the same"


def test_a_reader_that_dies_between_two_requests_answers_for_none() -> None:
    with forked() as text:
        assert text.reply(TURN, [], False).malformed == 2
        os.kill(_reader_of(_child_of(os.getpid())), signal.SIGKILL)
        assert [text.first([user("a")] * count, []) for count in (1, 2, 3)] == [[1, 0], [2, 0], [3, 0]]
        assert text.stats.texts_given_up == 0


class Half(Frame):
    """An answer whose process is killed when all but its last byte is sent."""

    def encode(self, limits: FrameLimits) -> bytes:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        return super().encode(limits)[:-1]


def test_a_reader_killed_while_sending_leaves_no_partial_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does for memory. The gateway would take the next frame for the rest, and end."""
    answer_of = forked_text._answer

    def answer(text: TurnText, request: Frame) -> Frame:
        answer = answer_of(text, request)
        half = request.fields["messages"][-1]["content"] == "half"
        return Half(answer.kind, answer.fields, answer.blobs) if half else answer

    monkeypatch.setattr(forked_text, "_answer", answer)
    with forked(seconds=5.0) as text:
        for count in (1, 2):
            with pytest.raises(GatewayError, match="the messages: the model's renderer took too long"):
                text.first([user("half")], [])
            assert text.first([user("a")] * count, []) == [count, 0]
        assert text.stats.texts_given_up == 2


def test_messages_that_are_too_long_are_refused() -> None:
    with forked() as text:
        with pytest.raises(GatewayError, match="the messages are too long") as refused:
            text.first([user("é" * 3_000_000)], [])
        assert refused.value.status == 400
        assert text.first([user("a")], []) == [1, 0]


@pytest.mark.timeout(30)
def test_a_gateway_whose_reader_never_answers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps, so that no processor time is up."""
    monkeypatch.setattr(forked_text, "MOST_SECONDS", 0.2)

    class Sleeping(StandInText):
        def reply(self, turn: TurnTokens, tools: Sequence[Json], calls: bool) -> ReplyText:
            time.sleep(30.0)
            raise AssertionError

    def ends(code: int) -> NoReturn:
        raise SystemExit(code)

    with forked(Sleeping()) as text:
        monkeypatch.setattr(os, "_exit", ends)
        with pytest.raises(SystemExit) as ended:
            text.reply(TURN, [], False)
        assert ended.value.code == 1
        os.kill(_reader_of(_child_of(os.getpid())), signal.SIGKILL)


def test_no_process_is_left() -> None:
    others = set(_children(os.getpid()))
    with forked(processes=2) as text:
        assert text.reply(TURN, [], False).content == "é"
        own = [pid for pid in _children(os.getpid()) if pid not in others]
        readers = [_reader_of(one) for one in own]
    assert not [pid for pid in (*own, *readers) if Path(f"/proc/{pid}").exists()]


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _child_of(pid: int) -> int:
    return _children(pid)[-1]


def _reader_of(supervisor: int) -> int:
    """Return the reader of a supervisor, which may still be about to fork it."""
    end = time.monotonic() + 10.0
    while not (found := _children(supervisor)) and time.monotonic() < end:
        time.sleep(0.01)
    return found[0]
