"""Traces: the ids of an episode's trace, which its agent and the exporter know without asking each other.

An episode is exported when its round has closed, from its sample. Its agent makes spans before, and joins them to the
trace by the header `traceparent` of W3C Trace Context. So both ids follow from the run and the attempt.
"""

from __future__ import annotations

import hashlib

TRACE_BYTES, SPAN_BYTES = 16, 8


def trace_id(run: str, attempt: int) -> int:
    """Return the id of an attempt's trace. `run`: the job's uid, or its name where it has none."""
    return _id(run, attempt, TRACE_BYTES)


def root_span_id(run: str, attempt: int) -> int:
    """Return the id of the span of the whole attempt."""
    return _id(run, attempt, SPAN_BYTES)


def traceparent(run: str, attempt: int) -> str:
    """Return the header by which spans become children of the attempt's.

    >>> traceparent("uid-1", 7)
    '00-19fe9617f476652590fd93cc370d5b26-290bb0c991c9e742-01'
    """
    return f"00-{trace_id(run, attempt):032x}-{root_span_id(run, attempt):016x}-01"


def _id(run: str, attempt: int, size: int) -> int:
    digest = hashlib.blake2b(f"{run}:{attempt}".encode(), digest_size=size, person=b"rljob trace").digest()
    # 0 is no id.
    return int.from_bytes(digest) or 1
