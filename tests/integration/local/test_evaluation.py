"""Evaluations of a real job: their numbers are those of the exported model."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
import yaml

from rljob_api import RLJob, load
from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.inputs import LazyRewards, open_prompts
from rljob_runtime.evaluation import read_evaluations
from rljob_runtime.scheduling.evaluation import evaluation_key
from tests.support.paths import ROOT

TASK = {
    "task": "basic_arithmetic",
    "size": 12,
    "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "operators": ["+"]},
}


def sums() -> RLJob:
    manifest = yaml.safe_load((ROOT / "examples/minimal.yaml").read_text(encoding="utf-8"))
    manifest["spec"]["rounds"] = 3
    manifest["spec"]["algorithm"]["learningRate"] = 3e-3
    manifest["spec"]["data"]["heldOut"] = {"fraction": 0.06}
    manifest["spec"]["evaluation"] = [
        {"name": "unseen", "prompts": {"heldOut": True}, "sampling": {"temperature": 0}, "everyRounds": 2},
        {"name": "other", "prompts": {"reasoningGym": TASK}, "sampling": {"temperature": 0}, "maxPrompts": 8},
    ]
    return load(manifest)


async def scored_by_transformers(job: RLJob, folder: Path, scratch: Path) -> dict[str, float]:
    """Generate greedily with the exported model, and score with the job's rewards."""
    import torch
    from transformers import AutoModelForCausalLM

    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".json", ".jinja")}
    prompts = open_prompts(job.spec, files, scratch)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    means = {}
    async with contextlib.AsyncExitStack() as closing:
        rewards = LazyRewards(job.spec)
        await rewards.open(closing)
        for evaluation in job.spec.evaluation:
            scores = []
            for index in prompts.evaluation_prompts(evaluation.name):
                prompt = prompts.prompt(evaluation_key(evaluation.name, 3, index))
                tokens = torch.tensor([list(prompt.token_ids)])
                made = model.generate(
                    tokens,
                    attention_mask=torch.ones_like(tokens),
                    do_sample=False,
                    max_new_tokens=job.spec.data.max_response_tokens,
                    eos_token_id=list(prompts.stop_token_ids),
                    pad_token_id=0,
                )
                text = await prompts.decode(made[0, tokens.shape[1] :].tolist())
                scores.append(float(await rewards.score(prompt, text)))
            means[evaluation.name] = sum(scores) / len(scores)
    return means


@pytest.mark.engine
def test_last_evaluation_equals_scoring_the_exported_model_with_transformers(tmp_path: Path) -> None:
    from rljob_runtime.local import run

    job = sums()
    result = run(job, tmp_path / "job")
    assert result.finished is not None
    assert result.finished.outcome is FinishedOutcome.COMPLETE, result.finished.message
    found = read_evaluations(tmp_path / "job")
    steps = sorted((one.name, one.round) for one in found)
    assert steps == [("other", 0), ("other", 3), ("unseen", 0), ("unseen", 2), ("unseen", 3)]
    assert {one.name: one.prompts for one in found} == {"unseen": 12, "other": 8}
    assert all(one.failed == 0 for one in found)
    last = {one.name: one.average for one in found if one.round == 3}
    expected = asyncio.run(scored_by_transformers(job, Path(result.model_path or ""), tmp_path))
    assert last == pytest.approx(expected, abs=1e-9)
    assert any(0 < average < 1 for average in last.values()), "a comparison of zeros would say nothing"
    assert result.evaluations, "the status shows them"
