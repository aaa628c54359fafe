"""Sample episode: the turns of a response whose environment asked the model several times.

A turn is what the model was given since the turn before, and what it sampled. Turns are in the order in which they were
opened, and each names the one that it goes on from, so that branches can be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from pydantic.alias_generators import to_camel


@dataclass(frozen=True)
class SampleCall:
    """A tool call that the model sampled. `arguments`: JSON text."""

    name: str
    arguments: str
    id: str = ""
    seconds: float | None = None
    """How long its execution took; None if its runner did not say it, as of a program's own tools."""
    stored: float | None = None
    """Seconds of the epoch at which its answer was stored."""


@dataclass(frozen=True)
class SampleMessage:
    """A message that the model was given: of `system`, `user`, `tool`, or an `assistant` that it did not sample."""

    role: str
    content: str
    call_id: str = ""
    """The call that a tool answers."""
    calls: tuple[SampleCall, ...] = ()


@dataclass(frozen=True)
class SampleTurn:
    """One turn."""

    node: int
    """Its number in the episode."""
    after: int = 0
    """The turn that it goes on from; 0 at the beginning."""
    messages: tuple[SampleMessage, ...] = ()
    """What its request adds to the conversation. Empty if the client sent tokens."""
    given: str = ""
    """Without messages: the text of the tokens that the model was given since `after`."""
    sampled: str = ""
    """The text of the sampled tokens, which are trained on. All other tokens are given."""
    calls: tuple[SampleCall, ...] = ()
    given_tokens: int = 0
    sampled_tokens: int = 0
    weight_version: int | None = None
    finish: str | None = None
    """`stop`, or `length` at the limit of its tokens."""
    model_seconds: float | None = None
    """From its request to the stored answer, without the time in which the attempt had no runner."""
    outside_seconds: float | None = None
    """From the answer before, or from the start of the attempt, to its request, without such time."""
    opened: float | None = None
    """Seconds of the epoch at which its request came."""
    stored: float | None = None
    """Seconds of the epoch at which its answer was stored."""
    given_ids: tuple[int, ...] = ()
    """Tokens, until the texts are decoded. A file has none."""
    sampled_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class SampleEpisode:
    """An attempt of an episode."""

    environment: str
    attempt: int
    """Its number in the job's store."""
    state: str | None = None
    """`completed`, `truncated` or `aborted`; absent if it was stopped before its end."""
    end: str | None = None
    """Why it was truncated or aborted. A program or a tool may have written a part of it."""
    cause: str | None = None
    """The part that failed, of an aborted one. One of a closed set, without a text of others."""
    forks: int = 0
    """Turns that opened a branch beside an existing one."""
    tools: tuple[str, ...] = ()
    """Names of the tools that the model was offered."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the environment."""
    turns: tuple[SampleTurn, ...] = ()
    started: float | None = None
    """Seconds of the epoch at which its first runner had it."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values in camelCase. What is empty is absent."""
        return _plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SampleEpisode:
        """Read what `to_dict` returned. Raises `TypeError` and `KeyError` for anything else."""
        return cls(**{**_known(cls, values), "turns": tuple(_turn(one) for one in values.get("turns", ()))})


def _plain(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for written, name in _fields(value.__class__).items():
        held = getattr(value, name)
        if isinstance(held, tuple):
            held = [_plain(item) if hasattr(item, "__dataclass_fields__") else item for item in held]
        elif isinstance(held, Mapping):
            held = dict(held)
        if held not in (None, "", [], {}):
            found[written] = held
    return found


def _known(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that this version knows; lists become tuples."""
    names = _fields(cls)
    found = {names[written]: value for written, value in values.items() if written in names}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


@cache
def _fields(cls: type) -> Mapping[str, str]:
    """Return the fields of a dataclass by their names in a file."""
    return {to_camel(one.name): one.name for one in fields(cls)}


def _turn(values: Mapping[str, Any]) -> SampleTurn:
    parts = {"messages": _messages(values.get("messages", ())), "calls": _calls(values)}
    return SampleTurn(**{**_known(SampleTurn, values), **parts})


def _messages(given: Any) -> tuple[SampleMessage, ...]:
    return tuple(SampleMessage(**{"content": "", **_known(SampleMessage, one), "calls": _calls(one)}) for one in given)


def _calls(values: Mapping[str, Any]) -> tuple[SampleCall, ...]:
    return tuple(SampleCall(**{"arguments": "", **_known(SampleCall, one)}) for one in values.get("calls", ()))
