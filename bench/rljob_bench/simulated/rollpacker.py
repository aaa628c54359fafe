"""`rljob bench rollpacker`: what each of RollPacker's techniques brings, one after the other, end to end.

The baseline is a plain synchronous job on the same number of accelerators, colocated (its stages take turns on all of
them) and disaggregated (as RLJob lays itself out); both train on the same prompts as every other row. Its rewards are a
stage of their own, in which everything waits for the slowest program: a row for each length of that stage. RLJob's
rewards begin as responses end, under a fixed timeout of that length and under the adaptive one.

Figures are ratios of seconds for each prompt trained on, over the whole job. How fairness is kept and what the model
leaves out: docs/internals/simulator/simulated-benchmarks.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_bench.lib.experiment import AUTO, PLAIN, TAIL, Experiment, Technique, ideal_seconds, run, speedup
from rljob_bench.lib.result import settings_of
from rljob_bench.lib.settings import settings_for, small
from rljob_runtime.cli.bench_result import OptionError, figure
from rljob_runtime.perf_model.profile import Profile
from rljob_runtime.scheduling.reward_timeout import TimeoutRule
from rljob_runtime.simulator.peers.assumptions import SETTINGS, Setting

PLANNER = replace(TAIL, name="tail batching + planner", planner=True)
STREAM = replace(PLANNER, name="tail batching + planner + stream", stream=True)
WHOLE = replace(STREAM, name="tail batching + planner + stream + loaned machines", loans=True)


@dataclass(frozen=True)
class Printed:
    """What RollPacker prints (Table 2, each with what comes before it; Fig. 11), and the goal for the whole."""

    tail: float
    reward: float
    planner: float
    stream: float
    rollout: float
    goal: float


PRINTED = {
    "7b-8k": Printed(1.30, 2.01, 2.01, 2.03, 1.74, 2.3),
    "14b-16k": Printed(1.48, 1.99, 2.02, 2.22, 3.15, 2.6),
    "32b-32k": Printed(2.21, 2.48, 2.52, 2.56, 3.96, 3.2),
}
AUTO_GOALS = {"dapo-32b": 2.1}
"""1 for everything else."""
FACTORS = ((1.0, 1.25, 1.19), (1.25, 1.0, 1.64), (1.25, 1.25, 3.15), (1.0, 1.5, 2.41), (1.5, 1.0, 1.94))
"""ηP, ηR and what Fig. 11 prints for them: rollout of 14B/16k, plain over tail batching."""


@dataclass(frozen=True)
class Plan:
    """What is measured. At ηP = 1.25 four short rounds fill the queue of the long one."""

    settings: tuple[Setting, ...] = SETTINGS
    rounds: int = 5
    auto_rounds: int = 20
    """Of jobs that choose by themselves: their first rounds are plain, because nothing is known yet."""
    reward_seconds: tuple[float, ...] = (20.0, 10.0, 40.0)
    """Of the plain job's reward stage: the first one in the figures, all of them in the rows."""
    factors_of: str = "14b-16k"
    """The setting whose factors are varied."""


QUICK = Plan(settings=(small(SETTINGS[0]),), auto_rounds=10, reward_seconds=(20.0,))


def rollpacker(
    *,
    quick: bool,
    seed: int,
    traces: Path | None = None,
    profile: Profile | None = None,
    rounds: int | None = None,
    auto_rounds: int | None = None,
    reward_seconds: Sequence[float] | None = None,
    trainers: int | None = None,
) -> dict[str, Any]:
    """Measure all settings, or with `traces` (the folder of a trace, or one that holds such folders) those instead.

    `profile`: of the engines; `trainers`: accelerators that only train, where jobs are disaggregated; the rest as in
    `Plan`. Raises `TraceError`, `ProfileError` and `OptionError`.
    """
    plan = QUICK if quick else Plan()
    plan = replace(
        plan,
        settings=settings_for(plan.settings, quick=quick, traces=traces, profile=profile, trainers=trainers),
        rounds=rounds or plan.rounds,
        auto_rounds=auto_rounds or plan.auto_rounds,
        reward_seconds=stages(reward_seconds) if reward_seconds else plan.reward_seconds,
    )
    figures: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for setting in plan.settings:
        measured = measure(setting, plan, seed)
        figures += measured.figures()
        rows += measured.rows()
        if setting.name == plan.factors_of:
            figures += factor_figures(setting, plan.rounds, seed, measured.plain_colocated, measured.tail_colocated)
    return {
        "bench": "rollpacker",
        "seed": seed,
        "settings": {
            "quick": quick,
            "rounds": plan.rounds,
            "auto_rounds": plan.auto_rounds,
            "reward_seconds": plan.reward_seconds,
            **settings_of(plan.settings),
        },
        "figures": figures,
        "rows": rows,
    }


def stages(asked: Sequence[float]) -> tuple[float, ...]:
    """Seconds of the reward stages that were asked for. Raises `OptionError`."""
    least = TimeoutRule().minimum
    for seconds in asked:
        if not (least <= seconds < math.inf and asked.count(seconds) == 1):
            raise OptionError(
                f"--reward-seconds {seconds:g}: {least:g} or more, which is the least that the adaptive timeout gives "
                "a program, and each once, would be right; jobs without any time for rewards are always played"
            )
    return tuple(asked)


@dataclass(frozen=True)
class Measured:
    """All jobs of a setting.

    `plain…` have as many rounds as the longest other job, and are read up to the end of the job that they are compared
    with. `stage`: seconds of the plain job's reward stage in the figures. `rewarded`: jobs by these seconds, which are
    the bound of theirs; those under 0 have rewards that take no time.
    """

    setting: Setting
    stage: float
    plain_colocated: Experiment
    plain: Experiment
    tail_colocated: Experiment
    tail: Experiment
    rewarded: Mapping[float, Sequence[Experiment]]

    def over(self, plain: Experiment, experiment: Experiment, stage: float, experiment_stage: float = 0.0) -> float:
        """Return a job's prompts for one of the plain job in the same time, both of as many rounds.

        The stages are of rewards, after generation.
        """
        return speedup(plain.first(len(experiment.reports)), experiment, stage, experiment_stage)

    def figures(self) -> list[dict[str, Any]]:
        """Return the steps against the colocated plain job whose rewards are a `stage`.

        The complete system and Auto are also compared with the disaggregated job, and both without any time for
        rewards.
        """
        return list(self._figures())

    def _figures(self) -> Iterator[dict[str, Any]]:
        name, base, stage = self.setting.name, self.plain_colocated, self.stage
        printed = PRINTED.get(name)
        limits = {each: base.seconds(each) / ideal_seconds(self.setting, base) for each in (0.0, stage)}

        def told(step: str, value: float, limit: float | None, goal: float | None = None) -> dict[str, Any]:
            paper = getattr(printed, "stream" if step == "whole" else step, None)
            return figure(f"{name}.{step}", value, goal, paper and f"RollPacker: {paper}x", limit)

        rounds = len(self.tail_colocated.reports)
        yield told("rollout", base.first(rounds).generation / self.tail_colocated.generation, None)
        yield told("disaggregated", speedup(base, self.plain, stage, stage), limits[stage])
        yield told("tail", self.over(base, self.tail, stage, stage), limits[stage])
        # The fixed timeout comes first, so that tail batching stands for the adaptive one.
        steps = {experiment.technique.name: experiment for experiment in self.rewarded[stage]}
        for step, technique in (("reward", TAIL), ("planner", PLANNER), ("stream", STREAM)):
            yield told(step, self.over(base, steps[technique.name], stage), limits[stage])
        for step, technique, goal in (
            ("whole", WHOLE, printed.goal if printed else None),
            ("auto", AUTO, AUTO_GOALS.get(name, 1.0)),
        ):
            yield told(step, self.over(base, steps[technique.name], stage), limits[stage], goal)
            yield told(f"{step}_over_disaggregated", self.over(self.plain, steps[technique.name], stage), None)
            (free,) = (experiment for experiment in self.rewarded[0.0] if experiment.technique.name == technique.name)
            yield told(f"{step}_without_reward_time", self.over(base, free, 0.0), limits[0.0])

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each job and length of the reward stage."""
        return list(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        for stage, experiments in self.rewarded.items():
            for layout, experiment in (
                ("colocated", self.plain_colocated),
                ("disaggregated", self.plain),
                ("colocated", self.tail_colocated),
                ("disaggregated", self.tail),
            ):
                yield self._row(experiment, layout, "a stage" if stage else "none", stage, stage)
            for experiment in experiments:
                yield self._row(experiment, "disaggregated", _reward(experiment.technique.timeout), stage, 0.0)

    def _row(self, experiment: Experiment, layout: str, reward: str, seconds: float, stage: float) -> dict[str, Any]:
        return {
            "setting": self.setting.name,
            "layout": layout,
            **experiment.row(stage),
            "reward": reward,
            "reward_seconds": seconds,
            "over_plain_colocated": round(self.over(self.plain_colocated, experiment, seconds, stage), 3),
            "over_plain_disaggregated": round(self.over(self.plain, experiment, seconds, stage), 3),
        }


def _reward(timeout: TimeoutRule | None) -> str:
    if timeout is None:
        return "none"
    return "fixed timeout" if timeout.minimum == timeout.maximum else "adaptive timeout"


def measure(setting: Setting, plan: Plan, seed: int) -> Measured:
    """Play the jobs of a setting."""

    def play(technique: Technique, *, colocated: bool = False) -> Experiment:
        rounds = plan.auto_rounds if technique.auto else plan.rounds
        if technique is PLAIN:
            rounds = max(plan.rounds, plan.auto_rounds)
        return run(setting, technique, rounds, seed, colocated=colocated)

    def rewarded(seconds: float) -> Iterator[Experiment]:
        fixed = TimeoutRule(minimum=seconds, maximum=seconds, shadow_share=0.0)
        adaptive = TimeoutRule(maximum=seconds)
        told = seconds == plan.reward_seconds[0]
        if told:
            yield play(replace(TAIL, timeout=fixed))
        for technique in (TAIL, PLANNER, STREAM, WHOLE, AUTO) if told else (TAIL, WHOLE, AUTO):
            yield play(replace(technique, timeout=adaptive))

    return Measured(
        setting,
        stage=plan.reward_seconds[0],
        plain_colocated=play(PLAIN, colocated=True),
        plain=play(PLAIN),
        tail_colocated=play(TAIL, colocated=True),
        tail=play(TAIL),
        rewarded={
            0.0: tuple(map(play, (STREAM, WHOLE, AUTO))),
            **{seconds: tuple(rewarded(seconds)) for seconds in plan.reward_seconds},
        },
    )


def factor_figures(
    setting: Setting, rounds: int, seed: int, plain: Experiment, tail: Experiment
) -> Sequence[dict[str, Any]]:
    """Fig. 11: the rollout alone, all accelerators generating. `tail` is the job at 1.25 and 1.25."""
    figures = []
    for prompts, responses, printed in FACTORS:
        name = f"tail batching {prompts} x {responses}"
        known = (tail.technique.prompt_factor, tail.technique.response_factor) == (prompts, responses)
        experiment = tail if known else run(setting, Technique(name, prompts, responses), rounds, seed, colocated=True)
        value = plain.first(rounds).generation / experiment.generation
        label = f"{setting.name}.rollout_{prompts:g}_prompts_{responses:g}_responses"
        figures.append(figure(label, value, None, f"RollPacker Fig. 11: {printed}x", None))
    return figures
