"""Plans: the ways to run a round, and the candidates that a job leaves open for the planner."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

from rljob_runtime.scheduling.tail_batching import Factors

PROMPT_FACTORS = (1.0, 1.25, 1.5)
RESPONSE_FACTORS = (1.0, 1.25, 1.5)
STANDARD = Factors()
"""RollPacker's factors, used while factors are undecided and nothing is measured."""


@dataclass(frozen=True)
class Plan:
    """How rounds run.

    `factors`: of over-sampling, None without. `stream`: whether complete groups are trained on immediately.

    >>> str(Plan()), str(Plan(Factors(1.25, 1), stream=True))
    ('plain', 'race 1.25 x 1, stream')
    """

    factors: Factors | None = None
    stream: bool = False

    def __str__(self) -> str:
        race = "plain" if self.factors is None else f"race {self.factors.prompts:g} x {self.factors.responses:g}"
        return f"{race}, stream" if self.stream else race


@dataclass(frozen=True)
class CandidatePlans:
    """Plans that the job permits. The first is the reference: it holds until predictions are possible."""

    plans: tuple[Plan, ...]

    @property
    def reference(self) -> Plan:
        return self.plans[0]

    @property
    def is_undecided(self) -> bool:
        """Whether there is more than one plan."""
        return len(self.plans) > 1


PLAIN = CandidatePlans((Plan(),))
"""Plain rounds only."""


def candidate_plans(
    race: bool | None,
    prompt_factor: float | None,
    response_factor: float | None,
    stream: bool | None,
    fits: Callable[[Factors], bool] = lambda factors: True,
) -> CandidatePlans:
    """Return the candidates; None stands for Auto. `fits`: whether a round of these factors may be launched.

    >>> [str(plan) for plan in candidate_plans(None, 1.25, 1.0, None).plans]
    ['plain', 'plain, stream', 'race 1.25 x 1', 'race 1.25 x 1, stream']
    """
    prompts = PROMPT_FACTORS if prompt_factor is None else (prompt_factor,)
    responses = RESPONSE_FACTORS if response_factor is None else (response_factor,)
    races = [Factors(*pair) for pair in product(prompts, responses) if max(pair) > 1]
    if race is True:
        first = Factors(prompt_factor or STANDARD.prompts, response_factor or STANDARD.responses)
        races.sort(key=lambda factors: factors != first)
    kinds: list[Factors | None] = [None] if race is not True else []
    if race is not False:
        kinds += [factors for factors in races if fits(factors)]
    if not kinds:
        kinds = [Factors(prompt_factor or 1, response_factor or 1)]
    streams = (False, True) if stream is None else (stream,)
    return CandidatePlans(tuple(Plan(factors, stream) for factors in kinds for stream in streams))


@dataclass(frozen=True)
class SelectedPlan:
    """The plan of a round with its reason and predictions, if any.

    `seconds`: of the round. `speedup`: over the reference plan. `explained`: seconds up to which the assumed lengths
    explain the round. `layouts`: seconds by TP size, for sizes that the operator may request and engines were measured
    in. `machines`: seconds by number of machines, if the operator may choose it."""

    plan: Plan
    reason: str = ""
    seconds: float | None = None
    speedup: float | None = None
    explained: float | None = None
    layouts: tuple[tuple[int, float], ...] = ()
    machines: tuple[tuple[int, float], ...] = ()

    def to_json(self) -> str:
        """Serialise for `from_json`."""
        factors = self.plan.factors
        race = None if factors is None else [factors.prompts, factors.responses]
        plain = {"race": race, "stream": self.plan.stream, "reason": self.reason, "seconds": self.seconds}
        more = {"speedup": self.speedup, "explained": self.explained}
        return json.dumps({**plain, **more, "layouts": self.layouts, "machines": self.machines})

    @classmethod
    def from_json(cls, text: str) -> SelectedPlan:
        """Parse the output of `to_json`."""
        plain: dict[str, Any] = json.loads(text)
        plan = Plan(Factors(*plain["race"]) if plain["race"] else None, plain["stream"])
        layouts, machines = (tuple(map(tuple, plain.get(by, ()))) for by in ("layouts", "machines"))
        return cls(plan, plain["reason"], plain["seconds"], plain["speedup"], plain.get("explained"), layouts, machines)


DEFAULT_PLAN = SelectedPlan(Plan())
"""A plain round, for jobs that request nothing else."""
