"""Text file: reads what a user wrote, or says in one line why it cannot."""

from __future__ import annotations

from pathlib import Path


class UnreadableText(Exception):
    """The file cannot be read as text. The message gives the reason, without the file's name."""


def read_text(file: Path) -> str:
    """Return the text of a file in UTF-8. Raises `UnreadableText`."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UnreadableText(f"cannot be read: {error.strerror}") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnreadableText(f"line {line}: byte 0x{content[error.start]:02x} is not UTF-8; must be a text") from None
