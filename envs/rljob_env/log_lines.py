"""Log lines: what a harness, a server or an agent states is quoted in the runner's log, whatever text it is."""

from __future__ import annotations

import logging

MOST_CHARACTERS = 1_000
MOST_OF_TRACEBACK = 8_000


class LineFormatter(logging.Formatter):
    """Formats a record as one line of bounded length. A traceback follows it, bounded too."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        """Return the traceback. Its lines are indented: none looks like a record. The error, at its end, stays."""
        text = _middle_cut(super().formatException(ei), MOST_OF_TRACEBACK)
        return "\n".join(f"  {escaped(line)}" for line in text.split("\n"))


def one_line(text: str) -> str:
    """Return a text as one line that every file and terminal takes, not much longer than a bound."""
    rest = len(text) - MOST_CHARACTERS
    return escaped(text) if rest <= 0 else f"{escaped(text[:MOST_CHARACTERS])} … ({rest} more characters)"


def escaped(text: str) -> str:
    """Return a text whose line breaks, control characters and halves of characters are escapes, as in `repr`."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _middle_cut(text: str, most: int) -> str:
    rest, half = len(text) - most, most // 2
    return text if rest <= 0 else f"{text[:half]}\n… ({rest} characters)\n{text[-half:]}"
