"""A terminal for a command: it sees a screen, and Ctrl-C reaches all its processes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

ROWS, COLUMNS = 40, 160
CTRL_C = b"\x03"


@dataclass(frozen=True)
class Shown:
    """The text that a command wrote, without colours and movements of the cursor, and its exit status."""

    lines: tuple[str, ...]
    status: int


def on_a_terminal(command: Sequence[str], interrupt_after: str, seconds: float) -> Shown:
    """Run a command on a terminal, and press Ctrl-C once when it has shown `interrupt_after`.

    Raises `TimeoutError` if it runs for longer than `seconds`.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], [*command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written, pressed, last = b"", False, time.monotonic() + seconds
    try:
        while part := _read(terminal, last):
            written += part
            if not pressed and interrupt_after.encode() in written:
                os.write(terminal, CTRL_C)
                pressed = True
    except TimeoutError:
        os.kill(pid, 9)
        raise TimeoutError(f"not ended within {seconds:g} s; it wrote: {_lines(written)[-20:]}") from None
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    return Shown(_lines(written), os.waitstatus_to_exitcode(status))


def _read(terminal: int, last: float) -> bytes:
    """Return what was written next; empty at the end."""
    ready, _, _ = select.select([terminal], [], [], max(0.0, last - time.monotonic()))
    if not ready:
        raise TimeoutError
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux reports the end of all writers so
        return b""


def _lines(written: bytes) -> tuple[str, ...]:
    text = Text.from_ansi(written.decode(errors="replace").replace("\r\n", "\n")).plain
    return tuple(line.rstrip() for line in text.splitlines())
