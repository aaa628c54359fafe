"""Retrying: how long to wait before a request is sent again."""

from __future__ import annotations

import random

import httpx

FIRST_SECONDS = 0.2
MOST_SECONDS = 5.0
AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504))
"""Statuses of what may pass."""


def delay(failures: int, response: httpx.Response | None = None) -> float:
    """Return the seconds before the next try: twice as many after each failure, spread, or what the server asks for."""
    seconds = min(MOST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, 16))
    asked = response.headers.get("Retry-After", "") if response is not None else ""
    wanted = float(asked) if asked.isascii() and asked.isdigit() else 0.0
    # Runners that lost the same gateway do not return to it in one moment.
    return max(seconds * random.uniform(0.5, 1.0), min(wanted, MOST_SECONDS))


def error_of(response: httpx.Response) -> tuple[str, str]:
    """Return code and message of an error in OpenAI's form; the status and the text of another."""
    try:
        error = response.json()["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "", f"status {response.status_code}: {response.text[:300]}"
