"""What the API server may answer instead of an object."""

from __future__ import annotations

import json


class ApiError(Exception):
    """An answer of 400 and above. `status` is the HTTP code, `reason` the API's word for it (AlreadyExists, Invalid,
    …)."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @classmethod
    def parse(cls, status: int, body: bytes, retry_after: str | None) -> ApiError:
        """The error that a response stands for; the body may be a `Status` object or any text."""
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
        """The version that was asked for is compacted: what is read from it has to begin anew."""
        return self.status == 410

    @property
    def invalid(self) -> bool:
        """The object itself is wrong: sending it again cannot help."""
        return self.status in (400, 413, 422)

    @property
    def transient(self) -> bool:
        """Sending the same request again may help."""
        return self.status in (429, 500, 502, 503, 504)


class Unreachable(Exception):
    """No answer: refused, reset, or past the time limit, also after the retries."""
