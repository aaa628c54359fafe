"""Errors of requests: an answer that is an error, and no answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """An answer of 400 and above.

    `status` is the HTTP status, `reason` the API's name for it (AlreadyExists, Invalid, …), `retry_after` the seconds
    that the server asks to wait.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @classmethod
    def parse(cls, status: int, body: bytes, retry_after: str | None) -> ApiError:
        """Return the error of a response. Its body is a `Status` object or any text."""
        reason, message = "", body[:300].decode("utf-8", "replace")
        try:
            decoded = json.loads(body)
        except ValueError:
            decoded = None
        if isinstance(decoded, dict):
            reason = str(decoded.get("reason") or "")
            message = str(decoded.get("message") or message)
        seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
        return cls(status, reason, message, seconds)

    @classmethod
    def of_status(cls, status: Mapping[str, Any]) -> ApiError:
        """Return the error of a `Status` object, as it comes in a watch."""
        return cls(int(status.get("code") or 500), str(status.get("reason") or ""), str(status.get("message") or ""))

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def already_exists(self) -> bool:
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def expired(self) -> bool:
        """The requested version is compacted: list and watch have to start again."""
        return self.status == 410

    @property
    def invalid(self) -> bool:
        """The object is wrong: the same request fails again."""
        return self.status in (400, 413, 422)

    @property
    def transient(self) -> bool:
        """The same request may succeed later."""
        return self.status in (429, 500, 502, 503, 504)


class Unreachable(Exception):
    """No answer after all attempts: no connection, no answer in time, or no credentials."""
