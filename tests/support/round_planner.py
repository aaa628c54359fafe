"""Engines and prompts of simulated rounds, for tests of the round planner."""

from __future__ import annotations

from random import Random

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.round_planner.length_model import PromptLengths
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, PromptDemand
from rljob_runtime.scheduling.round_planner.survival import LengthObservation

# A token a second, however many run: times are lengths.
SECOND = LatencyModel(((1, 1.0),), 0.0, 0.0, 0.0, 0.0)
STAGE = EngineFleet(SECOND, replicas=2, kv_tokens=1 << 30)
BUSY = EngineFleet(LatencyModel(((1, 0.01), (256, 2.56)), 0.0, 0.0, 0.0, 0.0), replicas=2, kv_tokens=1 << 30)
"""Engines that are compute bound: a second token costs as much as the first."""


def asked(*lengths: tuple[int, ...]) -> list[PromptDemand]:
    return [PromptDemand(1, one) for one in lengths]


def tailed(random: Random, prompts: int, responses: int, tail: float = 0.02) -> list[PromptLengths]:
    """Short responses, of which a few run away."""
    return [
        PromptLengths(
            10,
            tuple(
                LengthObservation(random.randint(2000, 4000) if random.random() < tail else random.randint(50, 150))
                for _ in range(responses)
            ),
        )
        for _ in range(prompts)
    ]
