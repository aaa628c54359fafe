"""Rows: the rows of PolyTrace's files, one model per format, and their streaming reader.

Only used fields are declared; others are ignored, so that files of newer recorders are readable. Values are strict:
`"12"` is not a length.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rljob_runtime.workloads.errors import Findings, TraceError

MAX_TOKENS = 10_000_000
"""A longer sequence is an invalid row."""
MAX_SECONDS = 1e6
"""Eleven days; a longer duration is an invalid row."""

Count = Annotated[int, Field(ge=0)]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
PromptTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]


class Row(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, populate_by_name=True)


class LengthsRow(Row):
    """`packed_lengths_step_N.jsonl`: one prompt per line, with the lengths of all its responses."""

    step: Count
    dp_rank: Count = 0
    local_index: Count
    input: PromptTokens
    output: Annotated[list[Tokens], Field(min_length=1)]
    n_sampling: Annotated[int, Field(ge=1)]
    validation: Annotated[bool, Field(alias="validate")] = False

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if len(self.output) != self.n_sampling:
            raise ValueError(f"output has {len(self.output)} lengths; n_sampling {self.n_sampling} would be right")
        return self


class RewardTimingRow(Row):
    """`reward_timings_step_N.jsonl`: wall time of the rewards of one data-parallel rank's responses."""

    step: Count
    dp_rank: Count
    batch_size: Annotated[int, Field(ge=1)]
    reward_time_s: Seconds
    validation: Annotated[bool, Field(alias="validate")] = False


class FilterRow(Row):
    """`dapo_filter_indices.jsonl`: prompts of a step that DAPO's dynamic sampling kept (their rewards differ).

    Indices count the training rows of the step's lengths file from 0, without blank lines and validation rows."""

    workload_step: Count
    prompt_count: Annotated[int, Field(ge=1)]
    kept_prompt_indices: list[Count]

    @model_validator(mode="after")
    def _in_step(self) -> Self:
        if len(set(self.kept_prompt_indices)) != len(self.kept_prompt_indices):
            raise ValueError("kept_prompt_indices names a prompt twice")
        if self.kept_prompt_indices and max(self.kept_prompt_indices) >= self.prompt_count:
            raise ValueError(
                f"kept_prompt_indices names prompt {max(self.kept_prompt_indices)}; "
                f"below prompt_count {self.prompt_count} would be right"
            )
        return self


class TurnRow(Row):
    turn: Count
    completion_tokens: Tokens


class ToolCallRow(Row):
    """A tool call. `append_len`: tokens that its answer adds to the context, template included."""

    turn: Count
    latency_s: Seconds
    append_len: Tokens


class MultiTurnRow(Row):
    """`multiturn_workload_step_N.jsonl`: one response per line, with its turns and tool calls."""

    step: Count
    prompt_group_id: Count
    sample_id: Count
    prompt_len: PromptTokens
    turns: Annotated[list[TurnRow], Field(min_length=1)]
    turn_count: Annotated[int, Field(ge=1)]
    tool_calls: list[ToolCallRow]
    tool_call_count: Count
    validation: Annotated[bool, Field(alias="validate")] = False

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if len(self.turns) != self.turn_count:
            raise ValueError(f"{len(self.turns)} turns; turn_count {self.turn_count} would be right")
        if len(self.tool_calls) != self.tool_call_count:
            raise ValueError(
                f"{len(self.tool_calls)} tool_calls; tool_call_count {self.tool_call_count} would be right"
            )
        if [turn.turn for turn in self.turns] != list(range(self.turn_count)):
            raise ValueError(f"turns are numbered {[turn.turn for turn in self.turns]}; 0, 1, 2, … would be right")
        for place, call in enumerate(self.tool_calls):
            if call.turn >= self.turn_count:
                raise ValueError(f"tool_calls[{place}].turn is {call.turn}; below {self.turn_count} would be right")
        return self


AnyRow = TypeVar("AnyRow", bound=Row)


def read_rows(path: Path, model: type[AnyRow], findings: Findings) -> Iterator[tuple[int, AnyRow]]:
    """Yield (line, row) of a JSONL file; lines count from 1, blank ones are skipped.

    Invalid rows go to `findings`. Raises `TraceError` if the file cannot be read."""
    empty = True
    try:
        with path.open("rb") as file:
            for line, raw in enumerate(file, start=1):
                if line == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                if not raw.strip():
                    continue
                empty = False
                try:
                    row = model.model_validate_json(raw)
                except ValidationError as error:
                    findings.refuse(path, line, explain(error))
                    continue
                yield line, row
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    if empty:
        findings.refuse(path, 1, "the file holds no rows; one JSON object a line would be right")


def explain(error: ValidationError) -> str:
    """Return the first error as field path, value and what would be right."""
    first = error.errors(include_url=False)[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    place = field_path(first["loc"])
    if first["type"] == "missing":
        return f"field {place} is missing{more}"
    message = first["msg"].removeprefix("Value error, ")
    if not place:
        return message + more
    return f"field {place} is {_short(first['input'])}: {message[0].lower()}{message[1:]}{more}"


def field_path(loc: tuple[int | str, ...]) -> str:
    """Format `("turns", 0, "turn")` as `turns[0].turn`."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
