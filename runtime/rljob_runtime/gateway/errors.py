"""Gateway errors: what a client receives instead of an answer, in OpenAI's form."""

from __future__ import annotations

import json
from typing import ClassVar


class GatewayError(Exception):
    """An answer with a status of 400 or more. `param` names the part of the request, `code` the kind of error.

    OpenAI's clients send a request again after 408, 409, 429 and 5xx, so only what may pass has one of these.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    def body(self) -> bytes:
        """Return the answer's body."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


def bad(message: str, param: str | None = None, code: str = "invalid_value") -> GatewayError:
    """Return the error of a request that another try does not make right."""
    return GatewayError(400, code, message, param)


class TemplateNotUsable(Exception):
    """A chat template with which no turns can be written. The message says why; `field` is the spec's."""

    field: ClassVar[str]

    @property
    def told(self) -> str:
        """The kind of error, which the guides name, with the field and the message."""
        return f"{type(self).__name__}: {self.field}: {self}"


class TemplateNotAppendOnly(TemplateNotUsable):
    """A template changes what it wrote earlier, so turns cannot be appended. The message says where."""

    field = "spec.data.chatTemplate"


class RendererNotUsable(TemplateNotUsable):
    """A renderer does not open with the model's tokenizer, or writes another text than the chat template."""

    field = "spec.data.chatTemplateRenderer"
