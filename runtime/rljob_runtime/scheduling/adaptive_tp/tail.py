"""Tail: plays a drawn outcome of a machine on its replicas, each with the batch that it really has.

The plan expects all responses in lockstep and evenly spread. A real machine is done when its fullest replica is, so a
switch is played before it is made: now, one look later, and never, on the same draws. Between two ends on a replica its
batch is constant, so a play costs one event per response. Responses that exceed a cache take turns. Prefill is not
played: the cost of a switch has that of its responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rljob_runtime.perf_model.batch_timeline import BatchTimeline, race_ends
from rljob_runtime.scheduling.adaptive_tp.draws import Draw
from rljob_runtime.scheduling.adaptive_tp.packing import pack
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, Running, SizedEngine
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PairCost, carried_by
from rljob_runtime.scheduling.adaptive_tp.switch_plan import PlannedSwitch

Load = Sequence[tuple[Running, float]]
"""Responses of an engine, each with the steps that it has left."""


def play(
    snapshot: MachineSnapshot,
    draw: Draw,
    engines: Mapping[int, SizedEngine],
    costs: Mapping[tuple[int, int], PairCost],
    switches: Iterable[PlannedSwitch] = (),
) -> float:
    """Return the seconds until the last response of the machine ends or loses its place, with these switches.

    `engines`: all that are known. Another machine whose size is not has the nearest one: without it, no place of the
    race would be taken there."""
    here = [list(zip(running, left, strict=True)) for running, left in zip(snapshot.replicas, draw.here, strict=True)]
    other = [
        (_nearest(engines, one.tensor_parallel), list(zip(one.running, left, strict=True)))
        for one, left in zip(snapshot.elsewhere, draw.elsewhere, strict=True)
    ]
    size = snapshot.tensor_parallel
    race = _Race(snapshot, [(engines[size], load) for load in here], other)
    for switch in switches:
        race.run(switch.left)
        carried = race.carried()
        if not carried:
            break
        seconds = costs[size, switch.target].seconds(carried_by(response for response, _ in carried))
        size = switch.target
        loads = pack(carried, snapshot.accelerators // size, lambda run: run[0])
        race.move(engines[size], loads, race.now + seconds)
    return race.run(0)


def _nearest(engines: Mapping[int, SizedEngine], size: int) -> SizedEngine:
    """Return the engine of this size, or that of the size with the nearest ratio to it."""
    return engines[min(engines, key=lambda known: (max(known, size) / min(known, size), known))]


class _Engine(BatchTimeline):
    """An engine of the machine or of another one."""

    def __init__(self, engine: SizedEngine, load: Load, start: float = 0.0) -> None:
        self.runs = sorted((left, place, response) for place, (response, left) in enumerate(load))
        """Sorted by their end."""
        lefts, contexts = [run[0] for run in self.runs], [run[2].context for run in self.runs]
        super().__init__(lefts, contexts, engine.decode, start, [run[2].group for run in self.runs])

    def rest(self, now: float) -> list[tuple[Running, float]]:
        """Return the active responses at `now` with their tokens, and the steps that each has left.

        Their order is that of the load: one by their ends would tell the packing the drawn lengths."""
        self.advance(now)
        made = int(self.made)
        active = sorted(
            (place, left, response)
            for (left, place, response), alive in zip(self.runs, self.alive, strict=True)
            if alive
        )
        return [
            (replace(response, generated=response.generated + made), max(0.0, left - self.made))
            for _, left, response in active
        ]


class _Race:
    """All engines of a round; those of the machine come first."""

    def __init__(
        self,
        snapshot: MachineSnapshot,
        here: Sequence[tuple[SizedEngine, Load]],
        other: Sequence[tuple[SizedEngine, Load]],
    ) -> None:
        self.now = 0.0
        self._mine = len(here)
        self._engines = [_Engine(engine, load) for engine, load in (*here, *other)]
        self._missing = [group.missing for group in snapshot.groups]
        self._complete = sum(missing <= 0 for missing in self._missing)
        self._wanted = snapshot.wanted
        self._left = sum(len(load) for _, load in here)
        self._ends = race_ends(self._engines, self._missing)

    def run(self, left: float) -> float:
        """Go on until at most so many of the machine's responses still run; return the time."""
        while self._left > left and not self._over and (end := next(self._ends, None)) is not None:
            now, number, _, lost = end
            self._left -= number < self._mine
            self.now = max(self.now, now) if number < self._mine or self._missing else self.now
            if lost is not None:
                self._complete += 1
                self._left -= sum(other < self._mine for other, _ in lost)
        return self.now

    def carried(self) -> list[tuple[Running, float]]:
        """Return the machine's responses that still run."""
        if self._over:
            return []
        return [run for engine in self._engines[: self._mine] for run in engine.rest(self.now)]

    def move(self, engine: SizedEngine, loads: Sequence[Load], start: float) -> None:
        """Continue the machine's responses on other engines, from `start`: nothing of the machine happens before."""
        self.now = start
        self._engines = [*(_Engine(engine, load, start) for load in loads), *self._engines[self._mine :]]
        self._mine = len(loads)
        self._ends = race_ends(self._engines, self._missing)

    @property
    def _over(self) -> bool:
        return bool(self._missing) and self._wanted > 0 and self._complete >= self._wanted
