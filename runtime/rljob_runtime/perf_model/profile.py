"""A measured profile of an engine: seconds of decode steps and prefill passes over batch × context × TP, and the size
of the KV cache at each TP (PAT §4.2, offline profiler).

It knows what it was measured on and is refused for anything else. It goes in and out as text; files are the caller's.
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
    """The profile cannot be used; the message names the field, the value and what would be right."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Sample(_Data):
    """One measurement on one layout."""

    tensor_parallel: Size
    batch: Size
    """Sequences at a time."""
    context: Size
    """Decode: tokens of a sequence in the KV cache, the mean over the steps measured. Prefill: tokens of a prompt."""
    seconds: Annotated[float, Field(gt=0)]
    """Decode: of one step. Prefill: of the whole pass over `batch` prompts. Up to the next step's begin, as a replica
    of ours takes it."""
    replica_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Of these, what passes between two steps: the replica stamps tokens, keeps and sends them."""


class ProfiledRound(_Data):
    """Responses that were all launched at once on one engine, and generated to their ends: what a fit has to foretell.
    No fit is made from it."""

    tensor_parallel: Size
    prompt_tokens: Size
    """Of each prompt."""
    lengths: Annotated[tuple[Size, ...], Field(min_length=1)]
    """Tokens of each response."""
    seconds: Annotated[float, Field(gt=0)]


class SizedRound(_Data):
    """A job's round on the engines of one tensor parallel size, as the engine model foretells it."""

    tensor_parallel: Size
    replicas: Size
    seconds: Annotated[float | None, Field(gt=0)] = None
    """Absent where the longest response does not fit the KV cache."""
    preemptions: Annotated[int, Field(ge=0)] = 0


class Start(_Data):
    """Where the parallelism planner of one job had best start. Nothing reads it but people: the job's spec decides."""

    tensor_parallel: Size | None = None
    """Of the shortest round; absent where no size holds the longest response."""
    machines: Size
    prompts: Size
    responses: Size
    """To each prompt."""
    lengths: str
    """`maxResponseTokens`, or a workload."""
    rounds: tuple[SizedRound, ...]


class Subject(_Data):
    """What was measured."""

    model: ModelShape
    engine: str
    engine_version: str
    hardware: str
    """The accelerators of a machine, or its processor."""


class Profile(_Data):
    """Measurements of one model by one engine on one kind of machine."""

    format: Literal[1] = 1
    """Raised when the meaning of the data changes."""
    subject: Subject
    kv_tokens: dict[Size, Size]
    """Capacity of the KV cache, by TP."""
    decode: tuple[Sample, ...]
    prefill: tuple[Sample, ...]
    rounds: tuple[ProfiledRound, ...] = ()
    start: Start | None = None
    """For the job that it was measured for, where several sizes were."""

    @classmethod
    def from_json(cls, text: str | bytes) -> Profile:
        """What `to_json` gave. Raises `ProfileError` with the path of the first thing wrong."""
        try:
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise ProfileError(_explain(error)) from None

    def to_json(self) -> str:
        """As `from_json` reads it."""
        return self.model_dump_json(indent=1, exclude_none=True)

    @property
    def tensor_parallel_sizes(self) -> tuple[int, ...]:
        """The layouts that were measured."""
        return tuple(sorted(self.kv_tokens))

    def is_of(self, model: ModelShape) -> bool:
        """Whether this model was measured. It is known by its shape, not its name: a checkpoint is as fast as the model
        it was trained from."""
        return replace(self.subject.model, name=model.name) == model

    def check_engine(self, model: ModelShape, engine: str) -> None:
        """Raise `ProfileError` where this is a profile of another model or engine."""
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
        """Raise `ProfileError` where this is a profile of something else than this engine on this machine."""
        self.check_engine(wanted.model, wanted.engine)
        for name in ("engine_version", "hardware"):
            measured, asked = getattr(self.subject, name), getattr(wanted, name)
            _expect(name, measured, asked, measured == asked)


def medians(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """The repeats of each load as one sample: their median, which a pause of the machine does not move."""
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
