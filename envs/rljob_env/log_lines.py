"""Log lines: what a harness, a server or an agent states is quoted in the runner's log, whatever text it is.

What worker processes of tools and rewards print reaches the same stream as it is.
"""

from __future__ import annotations

import logging
import sys

MOST_AT_BEGINNING = 500
MOST_AT_END = 2_000
"""The end of a failure's text has its cause."""
MOST_OF_TRACEBACK = 4_000
"""Characters at each end."""


def log_to_stderr() -> None:
    """Write the records of all loggers to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # It logs each request.


class LineFormatter(logging.Formatter):
    """Formats a record as one line of bounded length. A traceback follows it, bounded too."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        """Return the traceback. Its lines are indented: none looks like a record."""
        head, cut, tail = _ends(super().formatException(ei), MOST_OF_TRACEBACK, MOST_OF_TRACEBACK)
        return "\n".join(f"  {escaped(line)}" for line in f"{head}{cut}{tail}".split("\n"))


def one_line(text: str) -> str:
    """Return a text as one line that every file and terminal takes. A long one has its beginning and its end."""
    return "".join(map(escaped, _ends(text, MOST_AT_BEGINNING, MOST_AT_END)))


def escaped(text: str) -> str:
    """Return a text whose line breaks, control characters and halves of characters are escapes, as in `repr`."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _ends(text: str, head: int, tail: int) -> tuple[str, str, str]:
    """Return both ends of a text, and what stands for the rest."""
    rest = len(text) - head - tail
    return (text, "", "") if rest <= 0 else (text[:head], f" … ({rest} characters) … ", text[-tail:])
