"""Training bound: by how much switches end a round earlier, whose trainer may be slower than its generation.

A streaming trainer processes groups as they become complete. If it ends later than generation anyway, a shorter
generation hardly ends the round earlier: there are only more groups to catch up with. And a machine that switches
pauses first, which delays the groups that the trainer waits for. So the round is played with and without the switches,
each engine in the size of its own machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.adaptive_tp.snapshot import MAX_RUNNING
from rljob_runtime.scheduling.layouts.layout_switch import SwitchLook
from rljob_runtime.scheduling.lending.gain import (
    Arrival,
    EngineSpeed,
    EngineTimeline,
    RoundSnapshot,
    drawn,
    loads,
    simulate_tail,
    training_end,
)
from rljob_runtime.scheduling.lending.policy import LoanableMachine

LEAST_SHARE = 1e-6
"""A switched engine's steps take time, also where its prediction leaves none."""


@dataclass(frozen=True)
class RoundGain:
    """Seconds by which the generation and the training of a round end earlier; negative if they end later."""

    generation: float
    training: float


@dataclass(frozen=True)
class _Pace:
    """How a machine that switches goes on: a pause, then this share of the time that it would take otherwise."""

    pause: float
    share: float

    @classmethod
    def of(cls, decision: SwitchDecision) -> _Pace | None:
        """Return the pace that a switch is predicted to have; None without a prediction."""
        if decision.gain is None or decision.seconds is None or not decision.without:
            return None
        left = decision.without - decision.gain - decision.seconds
        return cls(decision.seconds, max(LEAST_SHARE, left / decision.without))


def round_gain(look: SwitchLook, switches: Mapping[str, SwitchDecision], token: float | None) -> RoundGain | None:
    """Return what the switches of a look gain. All other machines go on as they are, also those without a prediction.

    Requests that wait in an engine run with the others of it, so its end is a lower bound.
    `token`: the trainer's seconds per loss token; None if unknown, or if the trainer does not stream. Returns None if
    `token` is None, nothing switches, a switch has no prediction, or the speed of a size in use is unknown."""
    paces = {name: _Pace.of(one) for name, one in switches.items() if one.outcome is SwitchOutcome.SWITCHED}
    engines = sorted(name for name, size in look.sizes.items() if size in look.engines)
    unknown = any(responses and name not in engines for name, responses in look.round_.by_replica.items())
    if token is None or not paces or unknown or any(pace is None for pace in paces.values()):
        return None
    of_replica = {
        replica: pace for one in look.machines if (pace := paces.get(one.name)) is not None for replica in one.engines
    }
    latencies = {name: look.engines[look.sizes[name]].latency for name in engines}
    played = [_play(outcome, latencies, of_replica) for outcome in drawn(_by_engine(look.round_, engines))]
    backlog = look.round_.backlog
    return RoundGain(
        fmean(_last(without) - _last(with_switches) for without, with_switches in played),
        fmean(
            training_end(backlog, without, token) - training_end(backlog, with_switches, token)
            for without, with_switches in played
        ),
    )


def _by_engine(round_: RoundSnapshot, engines: list[str]) -> RoundSnapshot:
    """Return the round with each engine as a machine of its own."""
    made = [LoanableMachine(name, 0, tuple(round_.by_replica.get(name, ()))) for name in engines]
    return replace(round_, machines=made)


def _play(
    round_: RoundSnapshot, latencies: Mapping[str, LatencyModel], paces: Mapping[str, _Pace]
) -> tuple[list[Arrival], list[Arrival]]:
    """Return the groups that become complete, without the switches and with them. `latencies`: of the engines."""
    given = dict(zip(latencies, loads(round_.machines, round_.waiting), strict=True))

    def played(paces: Mapping[str, _Pace]) -> list[Arrival]:
        made = []
        for name, load in given.items():
            pace = paces.get(name, _UNCHANGED)
            speed = EngineSpeed(latencies[name].scaled(pace.share), 1, MAX_RUNNING)
            made.append(EngineTimeline(load, round_.lengths, speed, pace.pause))
        return simulate_tail(made, round_.groups, round_.wanted)

    return played({}), played(paces)


_UNCHANGED = _Pace(0.0, 1.0)


def _last(arrivals: list[Arrival]) -> float:
    return max((at for at, _ in arrivals), default=0.0)
