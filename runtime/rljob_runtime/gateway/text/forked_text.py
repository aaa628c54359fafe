"""Forked text: turns as text in processes of their own, which end when a text costs too much.

The renderers of known models search answers with regular expressions, whose time may grow with the cube of what the
model wrote: 2,000 blank lines in a call take half a minute. The interpreter does nothing else meanwhile, so a thread
would stop the gateway with all its agents, and runners would seem silent.

A supervisor is forked from the gateway once the model is loaded, and forks a reader. A reader has so many seconds of
processor time for a request; then the kernel ends it. The supervisor answers in its place, and forks the next one.

Each reader has a channel of its own with its supervisor, which passes complete frames on. So a reader may be killed
while it receives or sends, e.g. for its memory, and leaves no half of a frame to the next one or to the gateway.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import queue
import resource
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from rljob_runtime.gateway.errors import GatewayError, bad
from rljob_runtime.gateway.link.frames import (
    PREFIX,
    TOKEN,
    Frame,
    FrameError,
    FrameLimits,
    FrameTooLong,
    sizes_of,
    to_bytes,
    tokens_of,
)
from rljob_runtime.gateway.text.known_text import KnownText
from rljob_runtime.gateway.text.tool_calls import ToolCall
from rljob_runtime.gateway.text.turn_text import ReplyText, TurnText, TurnTokens
from rljob_runtime.gateway.wire.fields import Json
from rljob_runtime.sandbox.syscalls import PR_SET_PDEATHSIG, prctl

log = logging.getLogger(__name__)

SECONDS = 5.0
"""Processor time of a request. The longest conversations take a tenth of it."""
LIMITS = FrameLimits()
NUMBER_BYTES = 8
MOST_SECONDS = 300.0
"""For which an answer may not come. The bound of a reader is of processor time, so a busy machine takes longer."""
GIVEN_UP = "given up"
REFUSED, FAILED = "refused", "failed"


class TooCostly(Exception):
    """A text took more processor time than it may."""


@dataclass
class TextStats:
    """Totals of the readers."""

    texts_given_up: int = 0
    """Texts that took more processor time than they may."""


@contextlib.contextmanager
def bounded(text: TurnText, processes: int) -> Iterator[tuple[TurnText, TextStats]]:
    """Yield a text whose answers delay no other, and its totals.

    The text of a renderer runs in `processes` readers; any other takes a time that grows with the text alone.
    """
    if not isinstance(text, KnownText):
        yield text, TextStats()
        return
    with ForkedText(text, processes) as found:
        yield found, found.stats


class ForkedText:
    """A `TurnText` in `processes` readers. Use as a context manager, and open it before the gateway serves."""

    def __init__(self, text: TurnText, processes: int, seconds: float = SECONDS) -> None:
        self.stats = TextStats()
        self._readers = [_Reader(text, seconds) for _ in range(processes)]
        self._free: queue.SimpleQueue[_Reader] = queue.SimpleQueue()
        for reader in self._readers:
            self._free.put(reader)

    def __enter__(self) -> Self:
        """Do nothing: the readers run."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the readers."""
        for reader in self._readers:
            reader.close()

    def first(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[int]:
        """See `TurnText`."""
        try:
            answer = self._asked("first", {"messages": list(messages), "tools": list(tools)})
        except TooCostly as error:
            raise bad(f"the messages: {error}", "messages") from error
        return list(tokens_of(answer.blobs[0]))

    def following(self, turn: TurnTokens, messages: Sequence[Json], tools: Sequence[Json]) -> list[int] | None:
        """See `TurnText`."""
        try:
            answer = self._asked("following", {"messages": list(messages), "tools": list(tools)}, turn)
        except TooCostly as error:
            raise bad(f"the messages: {error}", "messages") from error
        return list(tokens_of(answer.blobs[0])) if answer.blobs else None

    def reply(self, turn: TurnTokens, tools: Sequence[Json], calls: bool) -> ReplyText:
        """See `TurnText`. Raises `TooCostly`."""
        said = self._asked("reply", {"tools": list(tools), "calls": calls}, turn).fields
        named = tuple(ToolCall(name, arguments) for name, arguments in said["calls"])
        return ReplyText(said["content"], named, said["reasoning"], said["malformed"])

    def _asked(self, kind: str, fields: Json, turn: TurnTokens | None = None) -> Frame:
        """Return a reader's answer. Raises `GatewayError`, `TooCostly` and, for another error, `RuntimeError`."""
        blobs = () if turn is None else (to_bytes(TOKEN, turn.prompt), to_bytes(TOKEN, turn.sampled))
        reader = self._free.get()
        try:
            answer = reader.ask(kind, fields, blobs)
        except FrameTooLong:
            raise bad("the messages are too long", "messages") from None
        finally:
            self._free.put(reader)
        said = answer.fields
        if answer.kind == GIVEN_UP:
            self.stats.texts_given_up += 1
            raise TooCostly("the model's renderer took too long for them")
        if answer.kind == REFUSED:
            raise GatewayError(said["status"], said["code"], said["text"], said["param"])
        if answer.kind == FAILED:
            raise RuntimeError(said["text"])
        return answer


class _Reader:
    """The gateway's end of a reader. One thread asks at a time."""

    def __init__(self, text: TurnText, seconds: float) -> None:
        self._socket, other = socket.socketpair()
        self._socket.settimeout(MOST_SECONDS)
        self._asked = 0
        self._pid = os.fork()
        if self._pid == 0:
            _Supervisor(text, seconds, other).run()
        other.close()

    def ask(self, kind: str, fields: Json, blobs: Sequence[bytes]) -> Frame:
        """Return the answer. A gateway without its supervisor ends: it can answer no turn, and is started again."""
        self._asked += 1
        try:
            self._socket.sendall(Frame(kind, {**fields, "id": self._asked}, blobs).encode(LIMITS))
            if (frame := _frame(self._socket)) is not None:
                return _decoded(frame)
            why = "it has ended"
        except (OSError, FrameError) as error:
            why = str(error)
        log.critical("the supervisor of a reader of texts is lost: %s; the gateway ends", why)
        os._exit(1)

    def close(self) -> None:
        """End the reader and its supervisor."""
        self._socket.close()
        os.waitpid(self._pid, 0)


@dataclass(frozen=True)
class _Kept:
    """A reader as its supervisor has it."""

    pid: int
    channel: socket.socket

    def asked(self, request: bytes) -> bytes | None:
        """Return the answer as a frame; None if the reader ends before it is complete."""
        try:
            self.channel.sendall(request)
            return _frame(self.channel)
        except (OSError, FrameError):
            return None

    def end(self) -> int:
        """End the reader, if it has not ended; return how it ended."""
        os.kill(self.pid, signal.SIGKILL)
        self.channel.close()
        return os.waitpid(self.pid, 0)[1]


class _Supervisor:
    """The process that keeps a reader."""

    def __init__(self, text: TurnText, seconds: float, channel: socket.socket) -> None:
        self._text = text
        self._seconds = seconds
        self._channel = channel
        self._number = mmap.mmap(-1, NUMBER_BYTES)
        """The number of the request that the reader had last. Both processes see it."""

    def run(self) -> NoReturn:
        """Keep a reader until the gateway ends. No code of the gateway goes on here, not even its clean-up."""
        try:
            self._leave_the_gateway()
            reader = self._fork()
            while (request := _frame(self._channel)) is not None:
                while (answer := reader.asked(request)) is None:
                    status, reader = reader.end(), self._fork()
                    if (number := _decoded(request).fields["id"]) == int.from_bytes(self._number[:], "big"):
                        answer = Frame(GIVEN_UP, {"id": number, "status": status}).encode(LIMITS)
                        break
                self._channel.sendall(answer)
            reader.end()
        finally:
            os._exit(0)

    def _leave_the_gateway(self) -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)  # that of the gateway's event loop
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        own = self._channel.fileno()
        os.closerange(3, own)
        os.closerange(own + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def _fork(self) -> _Kept:
        """Fork a reader with a channel of its own."""
        channel, other = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                channel.close()
                self._channel.close()
                self._read(other)
            finally:
                os._exit(0)
        other.close()
        return _Kept(pid, channel)

    def _read(self, channel: socket.socket) -> None:
        """Answer requests until the supervisor closes its end."""
        while (frame := _frame(channel)) is not None:
            request = _decoded(frame)
            self._number[:] = int(request.fields["id"]).to_bytes(NUMBER_BYTES, "big")
            signal.setitimer(signal.ITIMER_PROF, self._seconds)
            answer = _answer(self._text, request)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            channel.sendall(answer.encode(LIMITS))


def _answer(text: TurnText, request: Frame) -> Frame:
    """Return the answer to a request; an error is one too."""
    id = {"id": request.fields["id"]}
    try:
        kind, fields, blobs = _read_or_write(text, request)
        return Frame(kind, {**fields, **id}, blobs)
    except GatewayError as error:
        fields = {"status": error.status, "code": error.code, "text": str(error), "param": error.param}
        return Frame(REFUSED, {**fields, **id})
    except Exception as error:  # a renderer may raise any error
        return Frame(FAILED, {"text": repr(error)[:1000], **id})


def _read_or_write(text: TurnText, request: Frame) -> tuple[str, Json, Sequence[bytes]]:
    given = request.fields
    if request.kind == "first":
        return "tokens", {}, (to_bytes(TOKEN, text.first(given["messages"], given["tools"])),)
    turn = TurnTokens(*(tokens_of(blob).tolist() for blob in request.blobs))
    if request.kind == "following":
        tokens = text.following(turn, given["messages"], given["tools"])
        return "tokens", {}, () if tokens is None else (to_bytes(TOKEN, tokens),)
    said = text.reply(turn, given["tools"], given["calls"])
    calls = [[call.name, call.arguments] for call in said.calls]
    fields = {"content": said.content, "calls": calls, "reasoning": said.reasoning, "malformed": said.malformed}
    return "text", fields, ()


def _frame(channel: socket.socket) -> bytes | None:
    """Return the next frame as it is; None at the end. Raises `FrameError` and `OSError`."""
    prefix = _exactly(channel, PREFIX.size)
    if prefix is None:
        return None
    rest = _exactly(channel, sum(sizes_of(prefix, LIMITS)))
    if rest is None:
        raise FrameError("the connection ended inside a frame")
    return prefix + rest


def _decoded(frame: bytes) -> Frame:
    """Return the content of a complete frame. Raises `FrameError`."""
    header = PREFIX.size + sizes_of(frame[: PREFIX.size], LIMITS)[0]
    return Frame.decode(frame[PREFIX.size : header], frame[header:])


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    """Return so many bytes; None if the other end closes before them."""
    found = bytearray()
    while len(found) < size:
        piece = channel.recv(min(size - len(found), 1 << 20))
        if not piece:
            return None
        found += piece
    return bytes(found)
