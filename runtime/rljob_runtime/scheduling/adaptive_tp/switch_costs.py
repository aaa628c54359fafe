"""Switch costs: seconds that a change of tensor parallel size takes, from measurements and priors (PAT §4.3).

A switch stops the engines, puts them to sleep, wakes those of the other size and loads their weights. The state of
unfinished responses is either migrated (KV exported and imported) or recomputed (prefill), whichever is predicted to be
faster. KV that the machine's shared memory has no room for is recomputed. Each part is the median of its last
measurements for this pair of sizes. While there are fewer than three, the median of all pairs stands for each missing
one, or a prior if all pairs have fewer than three. A cost that is too high ends all switches and is never measured
again, so one slow switch must not make it so. A rate of state counts from its first measurement on, within a factor of
its prior (`BELIEVED`). A rate that is too high ends no switches: they carry their state the other way.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from math import inf
from statistics import median

from rljob_runtime.protocols import KvSize
from rljob_runtime.scheduling.adaptive_tp.snapshot import ALL_BUILT, Builds, Running, SizedEngine

KEPT = 8
"""Measurements of a part that are kept: enough for a median, few enough to follow a change."""
ENOUGH = 3
"""Measurements whose median one slow switch does not change."""


class Part(StrEnum):
    """A part of a switch.

    Seconds per switch, except: EXPORT and IMPORT per byte on the busiest accelerator, PREFILL per predicted second.
    BUILD is in place of WAKE if the machine has no such engines. It happens once, so rounds share its seconds
    (`snapshot.Builds`).
    """

    BUILD = "build"
    DRAIN = "drain"
    EXPORT = "export"
    SLEEP = "sleep"
    WAKE = "wake"
    LOAD = "load"
    IMPORT = "import"
    PREFILL = "prefill"


FIXED = (Part.DRAIN, Part.SLEEP, Part.WAKE, Part.LOAD)
"""Parts that do not depend on the responses."""
RATES = (Part.EXPORT, Part.IMPORT, Part.PREFILL)
"""Parts that the responses' state takes."""
BELIEVED = 2.0
"""Factor within which fewer than three measurements move a rate of state from its prior."""

EXPORT_COPY, IMPORT_COPY = 12.6e9, 4.8e9
"""Bytes a second from an accelerator to mapped shared memory, and from a new mapping to it: measured on one H100
(docs/results/bench-gpu.md)."""
CHECKSUM_RATE = 8 * 1.8e9
"""Bytes a second of CRC-32 in the eight threads of a process, one of which was measured beside that H100."""


def move_byte_seconds(copy_rate: float) -> float:
    """Return the seconds of a byte of KV that is copied at this rate, and whose checksum is computed too.

    >>> round(1e-9 / move_byte_seconds(EXPORT_COPY), 1), round(1e-9 / move_byte_seconds(IMPORT_COPY), 1)
    (6.7, 3.6)
    """
    return 1 / copy_rate + 1 / CHECKSUM_RATE


FORM = 2
"""Of stored costs. In the first one prefills were measured against predictions without the squares of contexts."""

PRIORS: Mapping[Part, float] = {
    Part.BUILD: 30.0,
    Part.DRAIN: 0.1,
    Part.SLEEP: 0.3,
    Part.WAKE: 0.3,
    Part.LOAD: 0.3,
    Part.EXPORT: move_byte_seconds(EXPORT_COPY),
    Part.IMPORT: move_byte_seconds(IMPORT_COPY),
    Part.PREFILL: 1.0,
}
"""Until something is measured: engines that are kept, and weights in shared memory."""


class State(StrEnum):
    """How the state of unfinished responses is carried over."""

    AUTO = "Auto"
    MIGRATE = "Migrate"
    RECOMPUTE = "Recompute"


@dataclass(frozen=True)
class Carried:
    """Unfinished responses that a switch carries over: their number, context tokens, and Σ context²."""

    responses: float
    tokens: float
    squares: float


def carried_by(running: Iterable[Running]) -> Carried:
    """Return what a switch of these responses carries over.

    >>> carried_by([Running(10, 20), Running(10, 30)])
    Carried(responses=2, tokens=70, squares=2500)
    """
    contexts = [response.context for response in running]
    return Carried(len(contexts), sum(contexts), sum(context * context for context in contexts))


@dataclass(frozen=True)
class SwitchCost:
    """Predicted seconds of a switch. `state`: how the responses are carried over."""

    seconds: float
    state: State


class SwitchCosts:
    """Costs of switches, by (from, to).

    `priors` replaces some of `PRIORS`."""

    def __init__(self, priors: Mapping[Part, float] | None = None) -> None:
        self._priors = {**PRIORS, **(priors or {})}
        self._pairs: dict[tuple[int, int], _Measured] = {}
        self._all = _Measured()
        self.kv: KvSize | None = None
        """Size of the KV that the engines can move, as last observed; None if they move none."""
        self.build_seconds: float | None = None
        """The longest build of engines of any size; None if none was measured. It stands for builds of other sizes."""

    def record(self, start: int, target: int, part: Part, units: float, seconds: float) -> None:
        """Record a part of a switch; 0 units are ignored. Raises `ValueError` for negative numbers."""
        if units < 0 or seconds < 0:
            raise ValueError(f"{part.value}: {seconds} s for {units} units; 0 or more would be right")
        if units > 0:
            for measured in (self._pairs.setdefault((start, target), _Measured()), self._all):
                measured.add(part, seconds / units)

    def unit(self, start: int, target: int, part: Part) -> float:
        """Return the seconds per unit of a part."""
        prior = self._priors[part]
        if len(everywhere := self._all.of(part)) >= ENOUGH:
            prior = median(everywhere)
        elif everywhere and part in RATES:
            prior = min(max(median(everywhere), prior / BELIEVED), prior * BELIEVED)
        pair = self._pairs.get((start, target))
        own = pair.of(part) if pair is not None else ()
        return median([*own, *[prior] * (ENOUGH - len(own))])

    @property
    def measured(self) -> bool:
        """Whether a switch, or the size of KV, was measured."""
        return bool(self._pairs) or self.kv is not None or self.build_seconds is not None

    def to_json(self, engines: str = "") -> str:
        """Serialise the measurements for `from_json`; the priors are not among them.

        `engines`: what the costs depend on, in any form."""
        pairs = [[*pair, measured.parts] for pair, measured in self._pairs.items()]
        kv = None if self.kv is None else astuple(self.kv)
        told = {"form": FORM, "engines": engines, "pairs": pairs, "all": self._all.parts, "kv": kv}
        told["build"] = self.build_seconds
        return json.dumps(told, default=list)

    @classmethod
    def from_json(cls, text: str, engines: str = "") -> SwitchCosts:
        """Parse the output of `to_json`. Parts that this runtime does not know are ignored.

        No measurement of other `engines` is taken: one that is too high would end all switches, and no later one would
        correct it. Raises `ValueError`, `KeyError` or `TypeError` for a text of another form.

        >>> costs = SwitchCosts()
        >>> costs.record(1, 2, Part.LOAD, 1, 4.0)
        >>> SwitchCosts.from_json(costs.to_json()).to_json() == costs.to_json()
        True
        """
        told, costs = json.loads(text), cls()
        if told["engines"] != engines:
            return costs
        if told.get("form") != FORM:
            for parts in (told["all"], *(parts for *_, parts in told["pairs"])):
                parts.pop(Part.PREFILL, None)
        costs._pairs = {(start, target): _Measured.parsed(parts) for start, target, parts in told["pairs"]}
        costs._all = _Measured.parsed(told["all"])
        if (kv := told.get("kv")) is not None:
            costs.kv = KvSize(*map(int, kv))
        if (build := told.get("build")) is not None:
            costs.build_seconds = float(build)
        return costs

    def record_build(self, seconds: float) -> None:
        """Record that engines of some size took so long to build."""
        self.build_seconds = max(self.build_seconds or 0.0, seconds)

    def table(
        self,
        engines: Mapping[int, SizedEngine],
        accelerators: int,
        state: State = State.AUTO,
        builds: Builds = ALL_BUILT,
    ) -> Mapping[tuple[int, int], PairCost]:
        """Return the costs of all pairs of sizes, for a machine with this many accelerators."""
        return {
            (start, target): self._with_build(
                self._pair(start, target, engines, accelerators, state), (start, target), builds
            )
            for start in engines
            for target in engines
            if start != target
        }

    def _with_build(self, cost: PairCost, pair: tuple[int, int], builds: Builds) -> PairCost:
        if not builds.needed(pair[1]):
            return cost
        build = self.build_seconds if self.build_seconds is not None else self.unit(*pair, Part.BUILD)
        extra = max(0.0, build - self.unit(*pair, Part.WAKE))
        paid = extra * builds.share(pair[1])
        return replace(cost, fixed=cost.fixed + paid, build=extra, unpaid=extra - paid)

    def _pair(
        self, start: int, target: int, engines: Mapping[int, SizedEngine], accelerators: int, state: State
    ) -> PairCost:
        source, sink = engines[start], engines[target]
        move = None
        if source.kv_token_bytes is not None and sink.kv_token_bytes is not None and state is not State.RECOMPUTE:
            move = TokenMove(
                self.unit(start, target, Part.EXPORT) * source.kv_token_bytes,
                self.unit(start, target, Part.IMPORT) * sink.kv_token_bytes,
                min(source.kv_room_tokens, sink.kv_room_tokens),
            )
        prefill = self.unit(start, target, Part.PREFILL)
        fixed = sum(self.unit(start, target, part) for part in FIXED)
        return PairCost(
            fixed, move, prefill, sink, accelerators // start, accelerators // target, state is State.MIGRATE
        )


@dataclass(frozen=True)
class TokenMove:
    """Seconds for the KV of one token.

    `export_seconds`: on each accelerator of the replica that exports it. `import_seconds`: on each of the one that
    imports it. `room_tokens`: tokens whose KV the machine's shared memory has room for. For more, no KV is moved."""

    export_seconds: float
    import_seconds: float
    room_tokens: float = inf


@dataclass(frozen=True)
class PairCost:
    """Cost of one pair of sizes.

    `fixed`: seconds without responses. `move`: of a token; None if KV is not migrated. `prefill_factor`: measured over
    predicted seconds of prefill. `sources`, `targets`: replicas of either size. `moves_what_fits`: whether KV is also
    migrated where a prefill is faster. `build`: seconds of a build, of which `fixed` has all but the `unpaid` ones."""

    fixed: float
    move: TokenMove | None
    prefill_factor: float
    target: SizedEngine
    sources: int
    targets: int
    moves_what_fits: bool = False
    build: float = 0.0
    unpaid: float = 0.0

    def of(self, carried: Carried) -> SwitchCost:
        """Return the cost with these responses: the cheaper of migration and recomputation, unless one is required."""
        move, prefill = self._move(carried), self._prefill(carried)
        if move <= prefill or (self.moves_what_fits and move < inf):
            return SwitchCost(self.fixed + move, State.MIGRATE)
        return SwitchCost(self.fixed + prefill, State.RECOMPUTE)

    def seconds(self, carried: Carried) -> float:
        """Return the seconds of `of`."""
        return self.of(carried).seconds

    def predicted_prefill(self, carried: Carried) -> float:
        """Return the seconds of prefill on the fullest replica, by its latency model."""
        if carried.responses <= 0:
            return 0.0
        share = _fullest(self.targets, carried)
        return self.target.latency.prefill(carried.tokens * share, carried.squares * share)

    def _move(self, carried: Carried) -> float:
        if self.move is None or carried.tokens > self.move.room_tokens:
            return inf
        leave = self.move.export_seconds * _fullest(self.sources, carried)
        return (leave + self.move.import_seconds * _fullest(self.targets, carried)) * carried.tokens

    def _prefill(self, carried: Carried) -> float:
        return self.prefill_factor * self.predicted_prefill(carried)


def _fullest(replicas: int, carried: Carried) -> float:
    """Return the share of the fullest replica: no response is divided among several."""
    return max(1 / replicas, 1 / carried.responses) if carried.responses > 0 else 0.0


@dataclass
class _Measured:
    parts: dict[Part, deque[float]] = field(default_factory=dict)

    def add(self, part: Part, unit_seconds: float) -> None:
        self.parts.setdefault(part, deque(maxlen=KEPT)).append(unit_seconds)

    def of(self, part: Part) -> Sequence[float]:
        return self.parts.get(part, ())

    @classmethod
    def parsed(cls, parts: Mapping[str, Sequence[float]]) -> _Measured:
        known = {Part(name): deque(each, maxlen=KEPT) for name, each in parts.items() if name in set(Part)}
        return cls(known)
