"""A bad spec: what is edited, which path is blamed, which value is shown, and what the advice must say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rljob_api.errors import ABSENT
from tests.support.api.jobs import REMOVE

EDITED = object()


@dataclass(frozen=True)
class Case:
    """`server`: whether the API server refuses it at apply too (schema or CEL). The operator refuses every one."""

    edits: dict[str, Any]
    path: str
    advice: str
    value: Any = field(default=EDITED)
    server: bool = True

    @property
    def shown(self) -> Any:
        """The value that the message must show: what was edited, unless said otherwise."""
        return self.edits[self.path] if self.value is EDITED else self.value

    @property
    def id(self) -> str:
        return f"{self.path}={self.shown}"[:90]


def one(path: str, value: Any, advice: str, server: bool = True) -> Case:
    """The edited field is the one that is blamed."""
    return Case({path: value}, path, advice, server=server)


def inside(path: str, value: Any, blamed: str, shown: Any, advice: str, server: bool = True) -> Case:
    """Something inside (or beside) the edited field is blamed."""
    return Case({path: value}, blamed, advice, value=shown, server=server)


def missing(path: str, advice: str = "is required") -> Case:
    return Case({path: REMOVE}, path, advice, value=ABSENT)
