"""Sample: one response of a round, as a line of JSON.

A reader ignores fields that it does not know and accepts absent ones, so that files of other versions stay readable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from pydantic.alias_generators import to_camel

from rljob_runtime.samples.episode import SampleEpisode

Message = Mapping[str, str]
"""A chat message: `role` and `content`."""


class SampleOutcome(StrEnum):
    """What became of a response. `reason` tells why, unless it was trained on."""

    TRAINED = "trained"
    FILTERED = "filtered"
    """Its group was not trained on: equal rewards, or a reward that failed."""
    REQUEUED = "requeued"
    """Its prompt is generated again later: it lost the round's race, or its weights are gone."""
    ABORTED = "aborted"
    """Others of its group ended first, and the group was trained on without it."""
    EVALUATED = "evaluated"
    """It belongs to an evaluation, which is never trained on."""
    FAILED = "failed"
    """Its own reward failed; another response took its place, or its group was filtered."""


@dataclass(frozen=True)
class Sample:
    """A response with its prompt, scores and outcome."""

    round: int
    """The round. Of an evaluation: the round after which the weights were evaluated."""
    prompt_id: str
    """`epoch.index`: the epoch, and the number of the record in the data."""
    sample: int
    """Its number among the responses to the prompt, from 0."""
    attempt: int
    outcome: SampleOutcome
    prompt: tuple[Message, ...] = ()
    response: str = ""
    tokens: int = 0
    """Tokens of the response."""
    reason: str | None = None
    cause: str | None = None
    """Why its reward failed, in a line: the rule, and the error of the user's function or the time-out."""
    finish: str | None = None
    """`stop`, or `length` at the limit; absent for a response that was stopped before its end."""
    reward: float | None = None
    """The weighted sum of all rules."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The value of each rule, before its weight."""
    advantage: float | None = None
    """Of a response that was trained on."""
    weight_versions: tuple[int, ...] = ()
    """Versions of the weights that generated it."""
    replica: str | None = None
    """The replica that ended it."""
    staleness: int | None = None
    """Updates between its weights and its use."""
    episode: SampleEpisode | None = None
    """Its turns, in a job with environments. `response` has their sampled texts, end to end."""

    @property
    def key(self) -> str:
        """Identity within a job: the prompt, the number of the response, and the attempt."""
        return sample_key(self.prompt_id, self.sample, self.attempt)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values in camelCase; absent instead of null."""
        values = {written: getattr(self, name) for written, name in _FIELDS.items()}
        values["episode"] = None if self.episode is None else self.episode.to_dict()
        return {name: value for name, value in values.items() if value is not None}

    def to_json(self) -> str:
        """Return one line without its end."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Sample:
        """Read what `to_dict` returned. Raises `ValueError` for anything else."""
        known = {_FIELDS[written]: value for written, value in values.items() if written in _FIELDS}
        try:
            known["outcome"] = SampleOutcome(known["outcome"])
            for name in ("prompt", "weight_versions"):
                known[name] = tuple(known.get(name, ()))
            if known.get("episode") is not None:
                known["episode"] = SampleEpisode.from_dict(known["episode"])
            return cls(**known)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a sample: {error}") from None

    @classmethod
    def from_json(cls, line: str) -> Sample:
        """Read a line. Raises `ValueError` for an incomplete one."""
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError("not a sample: an object would be right")
        return cls.from_dict(values)


def sample_key(prompt_id: str, sample: int, attempt: int) -> str:
    """Return `Sample.key`."""
    return f"{prompt_id}.{sample}#{attempt}"


_FIELDS: Mapping[str, str] = {to_camel(one.name): one.name for one in fields(Sample)}
"""Fields by their names in a file. A file has thousands of lines, and a name is made of words slowly."""
