"""Parameters of a generator: a workload's distributions and the similarity within prompts. JSON, without rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rljob_runtime.workloads.errors import TraceError
from rljob_runtime.workloads.quantile_distribution import Distribution, TurnCounts
from rljob_runtime.workloads.rows import explain

Correlation = Annotated[float, Field(ge=0, le=1)]


class ToolUse(BaseModel):
    """Multi-turn responses: every turn but the last ends with one tool call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    turns: TurnCounts
    turns_correlation: Correlation
    """Correlation within prompts of the normal scores of the number of turns."""
    call_tokens: Distribution
    """Generated in a turn that ends with a call."""
    answer_tokens: Distribution
    """Added to the context by a tool's answer."""
    seconds: Distribution
    """Per tool call."""


class WorkloadParameters(BaseModel):
    """All distributions of a workload; tokens and seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: Annotated[str, Field(min_length=1)]
    source: str
    """Origin of the data, for citation."""
    input_tokens: Distribution
    output_tokens: Distribution
    """Generated in the last (or only) turn."""
    correlation: Correlation
    """Correlation within prompts of the normal scores of lengths: 0 for independent responses, 1 if the prompt
    determines them."""
    input_correlation: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """Correlation of the scores of a prompt's length and its hardness."""
    reward_seconds: Distribution | None = None
    kept_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of prompts that dynamic sampling keeps, whatever their lengths."""
    tool_use: ToolUse | None = None

    @model_validator(mode="after")
    def _tokens(self) -> Self:
        distributions = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        if self.tool_use is not None:
            distributions["tool_use.call_tokens"] = self.tool_use.call_tokens
        for name, distribution in distributions.items():
            if distribution.values[-1] < 1:
                raise ValueError(f"{name} ends at {distribution.values[-1]}: 1 token or more would be right")
        return self

    @classmethod
    def load(cls, path: Path) -> WorkloadParameters:
        """Read a JSON file. Raises `TraceError` with file and field."""
        try:
            text = path.read_bytes()
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror}") from error
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise TraceError(f"{path}: {explain(error)}") from error

    def save(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")
