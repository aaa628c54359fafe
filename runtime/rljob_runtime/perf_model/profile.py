"""Profile: measured seconds of an engine's decode steps and prefill passes (PAT §4.2, offline profiler).

Samples cover batch × context × TP; the KV cache size is recorded by TP. A profile names what it was measured on, and is
refused for anything else. It is read and written as text; files belong to the caller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields, replace
from statistics import median
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rljob_runtime.perf_model.model_shape import ModelShape

Size = Annotated[int, Field(ge=1)]


class ProfileError(ValueError):
    """The profile cannot be used. The message names the field, its value, and what would be right."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Sample(_Data):
    """One measurement on one layout."""

    tensor_parallel: Size
    batch: Size
    """Simultaneous sequences."""
    context: Size
    """Decode: mean tokens of a sequence in the KV cache. Prefill: tokens of a prompt."""
    seconds: Annotated[float, Field(gt=0)]
    """Decode: of one step. Prefill: of the complete pass over `batch` prompts. Until the next step starts, as in our
    replica."""
    replica_seconds: Annotated[float, Field(ge=0)] = 0.0
    """The part between two steps: the replica stamps, keeps and sends tokens."""


class ProfiledRound(_Data):
    """Responses launched together on one engine and generated completely. It validates a fit, and is not part of it."""

    tensor_parallel: Size
    prompt_tokens: Size
    """Per prompt."""
    lengths: Annotated[tuple[Size, ...], Field(min_length=1)]
    """Tokens of each response."""
    seconds: Annotated[float, Field(gt=0)]


class SizedRound(_Data):
    """A job's round, predicted for the engines of one TP size."""

    tensor_parallel: Size
    replicas: Size
    seconds: Annotated[float | None, Field(gt=0)] = None
    """Absent if the longest response does not fit the KV cache."""
    preemptions: Annotated[int, Field(ge=0)] = 0


class Start(_Data):
    """Best start of a job's parallelism planner, for people to read; the job's spec decides."""

    tensor_parallel: Size | None = None
    """Size of the fastest round; absent if no size holds the longest response."""
    machines: Size
    prompts: Size
    responses: Size
    """Per prompt."""
    lengths: str
    """`maxResponseTokens`, or a workload."""
    rounds: tuple[SizedRound, ...]


class Subject(_Data):
    """What was measured."""

    model: ModelShape
    engine: str
    engine_version: str
    hardware: str
    """Accelerators of a machine, or its processor."""


class Profile(_Data):
    """Measurements of one model, one engine and one kind of machine."""

    format: Literal[1] = 1
    """Raised when the meaning of the data changes."""
    subject: Subject
    kv_tokens: dict[Size, Size]
    """Capacity of the KV cache, by TP."""
    decode: tuple[Sample, ...]
    prefill: tuple[Sample, ...]
    rounds: tuple[ProfiledRound, ...] = ()
    start: Start | None = None
    """For the job that it was measured for, if there were several sizes."""

    @classmethod
    def from_json(cls, text: str | bytes) -> Profile:
        """Parse the output of `to_json`. Raises `ProfileError` with the path of the first error."""
        try:
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise ProfileError(_explain(error)) from None

    def to_json(self) -> str:
        """Serialise for `from_json`."""
        return self.model_dump_json(indent=1, exclude_none=True)

    @property
    def tensor_parallel_sizes(self) -> tuple[int, ...]:
        """The measured layouts."""
        return tuple(sorted(self.kv_tokens))

    def is_of(self, model: ModelShape) -> bool:
        """Check whether this model was measured.

        Shapes are compared, not names: a checkpoint is as fast as its base model."""
        return replace(self.subject.model, name=model.name) == model

    def check_engine(self, model: ModelShape, engine: str) -> None:
        """Raise `ProfileError` if the profile is of another model or engine."""
        for one in fields(ModelShape):
            if one.name != "name":
                measured, asked = getattr(self.subject.model, one.name), getattr(model, one.name)
                _expect(
                    f"model.{one.name}",
                    f"{measured} ({self.subject.model.name})",
                    f"{asked} ({model.name})",
                    measured == asked,
                )
        _expect("engine", self.subject.engine, engine, self.subject.engine == engine)

    def check(self, wanted: Subject) -> None:
        """Raise `ProfileError` if the profile is of another engine or machine."""
        self.check_engine(wanted.model, wanted.engine)
        for name in ("engine_version", "hardware"):
            measured, asked = getattr(self.subject, name), getattr(wanted, name)
            _expect(name, measured, asked, measured == asked)


def medians(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Merge the repeats of each load into their median, which a pause of the machine does not change."""
    repeats: defaultdict[tuple[int, int, int], list[Sample]] = defaultdict(list)
    for one in samples:
        repeats[one.tensor_parallel, one.batch, one.context].append(one)
    return tuple(
        Sample(
            tensor_parallel=size,
            batch=batch,
            context=context,
            seconds=median(one.seconds for one in its),
            replica_seconds=median(one.replica_seconds for one in its),
        )
        for (size, batch, context), its in sorted(repeats.items())
    )


def _expect(path: str, measured: str, asked: str, same: bool) -> None:
    if not same:
        raise ProfileError(
            f"profile.subject.{path}: measured with {measured}, wanted for {asked}; "
            "a profile of this model, engine and hardware would be right (`rljob profile` makes one)"
        )


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    given = "" if first["type"] in ("missing", "json_invalid") else f"{first['input']!r}: "
    return f"profile{path}: {given}{first['msg']}{more}"
