"""Coordinator snapshot: a small JSON document in each trainer checkpoint. It restores a lost store.

It holds what later rounds depend on: drawn and waiting prompts, learned timeouts, and used version numbers. Attempts
are left out: a new history generates under new version numbers, which no replica has attempts for. Data for predictions
is learned again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from rljob_api.errors import show
from rljob_api.status import RuntimeTotals
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, SourceCursor

Count = Annotated[int, Field(ge=0)]


class SnapshotError(ValueError):
    """The document cannot be used. The message names the field, its value, and what would be right."""


@dataclass(frozen=True)
class CoordinatorSnapshot:
    """State after `step` updates.

    `queue`: long prompts that wait for a round, oldest first. `anchors`: see `rewards.Anchors`. `version`: the highest
    weight version used."""

    step: int
    cursor: Cursor
    queue: tuple[PromptKey, ...] = ()
    totals: RuntimeTotals = field(default_factory=RuntimeTotals)
    anchors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    version: int = 0

    def to_json(self) -> str:
        """Serialise for `from_json`."""
        document = _Document(
            step=self.step,
            cursor=_Place(epoch=self.cursor.epoch, position=self.cursor.position),
            sources=tuple(_SourcePlace(**asdict(source)) for source in self.cursor.sources) or None,
            long_queue=tuple(str(prompt) for prompt in self.queue),
            totals=self.totals,
            anchors={rule: dict(tests) for rule, tests in self.anchors.items()},
            version=self.version,
        )
        return document.model_dump_json(by_alias=True, exclude_none=True)

    @classmethod
    def from_json(cls, text: str, step: int) -> CoordinatorSnapshot:
        """Parse the output of `to_json` for this step. Raises `SnapshotError` with the path of the first error."""
        try:
            document = _Document.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise SnapshotError(_explain(error)) from None
        sources = tuple(SourceCursor(**one.model_dump()) for one in document.sources or ())
        cursor = Cursor(document.cursor.epoch, document.cursor.position, sources)
        queue = tuple(map(PromptKey.parse, document.long_queue))
        if document.step != step:
            raise SnapshotError(f"step is {document.step}: the checkpoint is of step {step}")
        for place, prompt in enumerate(queue):
            if prompt in queue[:place]:
                raise SnapshotError(f"longQueue[{place}] is {prompt}: it waits already, and a prompt waits once")
            if prompt.epoch > (at := cursor.of(prompt.source)).epoch:
                raise SnapshotError(f"longQueue[{place}] is {prompt}: the cursor stands in epoch {at.epoch}")
        return cls(step, cursor, queue, document.totals, document.anchors, document.version)


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class _Place(_Data):
    epoch: Count
    position: Count


class _SourcePlace(_Place):
    name: str
    allotted: Count
    weight: Annotated[str, Field(pattern=r"^\d+(/\d+)?$")]


class _Document(_Data):
    format: Literal[1] = 1
    """Raised when the meaning of the data changes."""
    step: Count
    cursor: _Place
    sources: tuple[_SourcePlace, ...] | None = None
    """The cursors of named sources; absent without any, as in documents of earlier versions."""
    long_queue: tuple[Annotated[str, Field(pattern=r"^([a-z0-9-]+/)?\d+\.\d+$")], ...]
    totals: RuntimeTotals
    anchors: dict[str, dict[str, Count]]
    version: Count


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    given = "" if first["type"] in ("missing", "json_invalid") else f" is {show(first['input'])}"
    return f"{path.removeprefix('.') or 'the document'}{given}: {first['msg']}"
