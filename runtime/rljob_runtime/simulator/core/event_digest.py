"""Event digest: a digest of a run that is independent of the names of classes and fields.

It covers values only. Each kind of event has a fixed tag, and each field a fixed place after it, so digests of a seed
are comparable across renames.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.simulator.core import events as e

Fields = tuple[str, ...]

_PLAIN = frozenset({bool, float, int, str, type(None)})
"""Types whose `repr` contains no class name. Subclasses are refused: the `repr` of an enum's member names the enum."""


@dataclass(frozen=True)
class Places:
    """What a digest covers of each class, in order."""

    kinds: Mapping[type, tuple[int, Fields]]
    """Tag and fields by kind of event. A tag is never reused; a new field is appended."""
    values: Mapping[type, Fields]
    """Fields by class of a value inside events."""
    left_out: Mapping[type, Fields] = field(default_factory=dict)
    """Fields that a digest does not cover."""


PLACES = Places(
    kinds={
        e.ProcessStarted: (1, ("process", "boot")),
        e.ProcessEnded: (2, ("process",)),
        e.StoreLost: (3, ()),
        e.Submitted: (4, ("replica", "key", "attempt", "version", "prefix")),
        e.Generated: (5, ("replica", "key", "attempt", "version", "tokens", "since")),
        e.Aborted: (6, ("replica", "key", "attempt", "tokens", "since")),
        e.MadeRoom: (7, ("replica",)),
        e.LaidOut: (8, ("replica", "tensor_parallel", "since")),
        e.Loaded: (9, ("replica", "version", "content", "since")),
        e.Received: (10, ("machine", "version", "since")),
        e.Restored: (11, ("step", "content")),
        e.Contributed: (12, ("step", "prompts", "since")),
        e.Summed: (13, ("machine", "step", "prompts", "content", "since")),
        e.Brought: (14, ("machine", "step", "groups", "since")),
        e.Trained: (15, ("step", "before", "after", "since", "parts")),
        e.Published: (16, ("version", "step", "content", "since")),
        e.Checkpointed: (17, ("step", "since")),
        e.Exported: (18, ("step",)),
        e.Asked: (19, ("rounds",)),
        e.Learned: (20, ("anchors",)),
        e.Scored: (21, ("prompt", "reward", "since")),
        e.Committed: (22, ("rows",)),
        e.Reported: (23, ("event",)),
        e.CoordinatorStarted: (24, ("term",)),
        e.CoordinatorEnded: (25, ("term", "why", "since")),
        e.FaultBegan: (26, ("fault",)),
        e.FaultEnded: (27, ("fault", "target", "since")),
        e.KvAsked: (28, ("replica", "key", "written", "version", "tokens", "cause")),
        e.EpisodeReported: (29, ("runner", "key", "attempt", "reward", "failed")),
        e.Profiled: (30, ("replica", "tensor_parallel", "loads", "since")),
        e.ToolCalled: (31, ("runner", "key", "attempt", "node", "what")),
    },
    values={
        PromptKey: ("epoch", "index", "source"),
        TrajectoryKey: ("prompt", "sample"),
        e.Part: ("worker", "content", "prompts"),
        e.Row: ("table", "identity", "values"),
    },
    left_out={
        # `after` covers which responses they are, and invariants compare their tokens.
        e.Trained: ("groups",),
        # Its fields are the API's, which has other rules for names.
        e.Reported: ("status",),
    },
)


class EventDigest:
    """Digest of the events added so far."""

    def __init__(self, places: Places = PLACES) -> None:
        self._places = places
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, seconds: float, event: object) -> None:
        """Add one event. Raises KeyError for a kind of event, and TypeError for a value, without a place."""
        tag, fields = self._places.kinds[type(event)]
        values = tuple([self._plain(getattr(event, name)) for name in fields])
        self._hash.update(f"{seconds!r} {tag} {values!r}\n".encode())

    def text(self) -> str:
        """Return the digest in hexadecimal digits."""
        return self._hash.hexdigest()

    def _plain(self, value: object) -> object:
        """Convert a value to one without names of classes or fields."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple and isinstance(value, tuple):
            return value if _PLAIN.issuperset(map(type, value)) else tuple([self._plain(one) for one in value])
        fields = self._places.values.get(kind)
        if fields is None:
            wanted = "a number, a text, None, a tuple or a class of `Places.values` would be right"
            raise TypeError(f"a digest has no place for {value!r} of type {kind.__name__}: {wanted}")
        return tuple([self._plain(getattr(value, name)) for name in fields])
