"""`rljob bench rollpacker`: what each of RollPacker's techniques brings, one after the other, end to end.

The baseline is a plain synchronous job on the same number of accelerators, colocated (its stages take turns on all of
them) and disaggregated (as RLJob lays itself out); both train on the same prompts as every other row. Its rewards are a
stage of their own, in which everything waits for the slowest program: a row for each length of that stage. RLJob's
rewards begin as responses end, under a fixed timeout of that length and under the adaptive one.

Figures are ratios of seconds for each prompt trained on, over the whole job. How fairness is kept and what the model
leaves out: docs/design/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_runtime.scheduling.reward_timeout import TimeoutRule
from rljob_runtime.simulation.assumptions import SETTINGS, Setting
from rljob_runtime.simulation.benchmarks.result import figure, settings_of
from rljob_runtime.simulation.benchmarks.traces import trace_settings
from rljob_runtime.simulation.benchmarks.trial import PLAIN, TAIL, Technique, Trial, ideal_seconds, run, speedup

STREAM = replace(TAIL, name="tail batching + stream", stream=True)
REWARD_SECONDS = 20.0
"""Of the plain job's reward stage in the figures; the rows have others."""


@dataclass(frozen=True)
class Printed:
    """What RollPacker prints (Table 2, Fig. 11), and the goal for the whole."""

    tail: float
    reward: float
    whole: float
    rollout: float
    goal: float


PRINTED = {
    "7b-8k": Printed(1.30, 2.01, 2.03, 1.74, 2.3),
    "14b-16k": Printed(1.48, 1.99, 2.22, 3.15, 2.6),
    "32b-32k": Printed(2.21, 2.48, 2.56, 3.96, 3.2),
}
TRACE_GOALS = {"dapo-32b": 2.1}
"""Of `whole`; 1 for other traces."""
FACTORS = ((1.0, 1.25, 1.19), (1.25, 1.0, 1.64), (1.25, 1.25, 3.15), (1.25, 1.5, 2.41), (1.5, 1.25, 1.94))
"""ηP, ηR and what Fig. 11 prints for them: rollout of 14B/16k, plain over tail batching."""


@dataclass(frozen=True)
class Plan:
    """What is measured. At ηP = 1.25 four short rounds fill the queue of the long one."""

    settings: tuple[Setting, ...] = SETTINGS
    rounds: int = 5
    reward_seconds: tuple[float, ...] = (10.0, REWARD_SECONDS, 40.0)
    """Of generated lengths. Traces are measured with `REWARD_SECONDS` alone."""
    factors_of: str = "14b-16k"
    """The setting whose factors are varied."""


QUICK = Plan(settings=(replace(SETTINGS[0], prompts=16, responses=4),), rounds=5, reward_seconds=(REWARD_SECONDS,))


def rollpacker(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
    """Measure all settings, and with `traces` (the folder of a trace, or one that holds such folders) those. Raises
    `TraceError`."""
    plan = QUICK if quick else Plan()
    recorded = trace_settings(traces) if traces else ()
    settings = (*plan.settings, *recorded)
    figures: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for setting in settings:
        stages = (REWARD_SECONDS,) if setting in recorded else plan.reward_seconds
        measured = measure(setting, plan.rounds, stages, seed)
        figures += measured.figures()
        rows += measured.rows()
        if setting.name == plan.factors_of:
            figures += factor_figures(setting, plan.rounds, seed, measured.plain_colocated, measured.tail_colocated)
    return {
        "bench": "rollpacker",
        "seed": seed,
        "settings": {"quick": quick, "rounds": plan.rounds, **settings_of(settings)},
        "figures": figures,
        "rows": rows,
    }


@dataclass(frozen=True)
class Rewarded:
    """The jobs of one length of the reward stage, which is also the fixed timeout."""

    seconds: float
    fixed: Trial
    adaptive: Trial
    whole: Trial
    """Adaptive, and the trainer streams."""


@dataclass(frozen=True)
class Measured:
    """All jobs of a setting. Those without a reward's name in it have rewards that take no time."""

    setting: Setting
    plain_colocated: Trial
    plain: Trial
    tail_colocated: Trial
    tail: Trial
    stream: Trial
    rewarded: tuple[Rewarded, ...]

    def figures(self) -> list[dict[str, Any]]:
        """Steps against the colocated plain job whose rewards are a stage of `REWARD_SECONDS`; the whole also against
        the other ones."""
        name, base, stage = self.setting.name, self.plain_colocated, REWARD_SECONDS
        reward = next(each for each in self.rewarded if each.seconds == stage)
        printed = PRINTED.get(name)
        limit = base.seconds(stage) / ideal_seconds(self.setting, base)
        goal = printed.goal if printed else TRACE_GOALS.get(name, 1.0)
        paper = (
            {what: f"RollPacker: {getattr(printed, what)}x" for what in ("tail", "reward", "whole", "rollout")}
            if printed
            else {}
        )
        no_reward = base.seconds() / ideal_seconds(self.setting, base)
        steps = (
            ("rollout", base.generation / self.tail_colocated.generation, None, None),
            ("tail", speedup(base, self.tail, stage, stage), None, limit),
            ("reward", speedup(base, reward.adaptive, stage), None, limit),
            ("whole", speedup(base, reward.whole, stage), goal, limit),
            ("whole_over_disaggregated", speedup(self.plain, reward.whole, stage), None, None),
            ("whole_without_reward_time", speedup(base, self.stream), None, no_reward),
        )
        return [figure(f"{name}.{step}", value, goal, paper.get(step), limit) for step, value, goal, limit in steps]

    def rows(self) -> list[dict[str, Any]]:
        """A line for each job and length of the reward stage."""
        return list(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        stages = (0.0, *(each.seconds for each in self.rewarded))
        for stage in stages:
            for layout, trial in (
                ("colocated", self.plain_colocated),
                ("disaggregated", self.plain),
                ("colocated", self.tail_colocated),
                ("disaggregated", self.tail),
            ):
                yield self._row(trial, layout, "a stage" if stage else "none", stage, stage)
        yield self._row(self.stream, "disaggregated", "none", 0.0, 0.0)
        for each in self.rewarded:
            for trial, reward in ((each.fixed, "fixed"), (each.adaptive, "adaptive"), (each.whole, "adaptive")):
                yield self._row(trial, "disaggregated", f"{reward} timeout", each.seconds, 0.0)

    def _row(self, trial: Trial, layout: str, reward: str, seconds: float, stage: float) -> dict[str, Any]:
        return {
            "setting": self.setting.name,
            "layout": layout,
            **trial.row(stage),
            "reward": reward,
            "reward_seconds": seconds,
            "over_plain_colocated": round(speedup(self.plain_colocated, trial, seconds, stage), 3),
            "over_plain_disaggregated": round(speedup(self.plain, trial, seconds, stage), 3),
        }


def measure(setting: Setting, rounds: int, reward_seconds: Sequence[float], seed: int) -> Measured:
    """Play the jobs of a setting."""

    def play(technique: Technique, *, colocated: bool = False) -> Trial:
        return run(setting, technique, rounds, seed, colocated=colocated)

    def rewarded(seconds: float) -> Rewarded:
        fixed = TimeoutRule(minimum=seconds, maximum=seconds, shadow_share=0.0)
        adaptive = TimeoutRule(maximum=seconds)
        return Rewarded(
            seconds,
            fixed=play(replace(TAIL, timeout=fixed)),
            adaptive=play(replace(TAIL, timeout=adaptive)),
            whole=play(replace(STREAM, timeout=adaptive)),
        )

    return Measured(
        setting,
        plain_colocated=play(PLAIN, colocated=True),
        plain=play(PLAIN),
        tail_colocated=play(TAIL, colocated=True),
        tail=play(TAIL),
        stream=play(STREAM),
        rewarded=tuple(map(rewarded, reward_seconds)),
    )


def factor_figures(setting: Setting, rounds: int, seed: int, plain: Trial, tail: Trial) -> Sequence[dict[str, Any]]:
    """Fig. 11: the rollout alone, all accelerators generating. `tail` is the job at 1.25 and 1.25."""
    figures = []
    for prompts, responses, printed in FACTORS:
        name = f"tail batching {prompts} x {responses}"
        known = (tail.technique.prompt_factor, tail.technique.response_factor) == (prompts, responses)
        trial = tail if known else run(setting, Technique(name, prompts, responses), rounds, seed, colocated=True)
        value = plain.generation / trial.generation
        label = f"{setting.name}.rollout_{prompts:g}_prompts_{responses:g}_responses"
        figures.append(figure(label, value, None, f"RollPacker Fig. 11: {printed}x", None))
    return figures
