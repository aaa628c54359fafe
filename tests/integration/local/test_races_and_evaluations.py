"""A real job whose responses race, and which is evaluated: those numbers are the exported model's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from rljob_api import RLJob, load
from rljob_api.status import FinishedOutcome, RuntimeStatus
from rljob_runtime.coordinator.inputs import LazyRewards, open_prompts
from rljob_runtime.evaluation import read_evaluations
from rljob_runtime.scheduling.evaluation import evaluation_key
from tests.support.paths import ROOT

TASK = {
    "task": "basic_arithmetic",
    "size": 16,
    "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "operators": ["+"]},
}
ROUNDS = 4


@dataclass(frozen=True)
class Ended:
    """A job that has run to its end."""

    job: RLJob
    folder: Path
    status: RuntimeStatus


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One job for both: its processes take longer to start than to do all of their work."""
    from rljob_runtime.local import run

    manifest = yaml.safe_load((ROOT / "examples/addition-rollpacker.yaml").read_text(encoding="utf-8"))
    manifest["spec"]["rounds"] = ROUNDS
    manifest["spec"]["algorithm"]["learningRate"] = 3e-3
    manifest["spec"]["data"]["heldOut"] = {"fraction": 0.1}
    manifest["spec"]["evaluation"] = [
        {"name": "unseen", "prompts": {"heldOut": True}, "sampling": {"temperature": 0}, "everyRounds": 3},
        {"name": "other", "prompts": {"reasoningGym": TASK}, "sampling": {"temperature": 0}, "maxPrompts": 12},
    ]
    job, folder = load(manifest), tmp_path_factory.mktemp("job")
    status = run(job, folder)
    assert status.finished is not None
    assert status.finished.outcome is FinishedOutcome.COMPLETE, status.finished.message
    return Ended(job, folder, status)


@pytest.mark.engine
def test_rounds_race_and_groups_are_trained_on_early(ended: Ended) -> None:
    lines = [json.loads(line) for line in (ended.folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert sum(line["abortedResponses"] for line in lines) > 0, "who lost the race was stopped"
    assert sum(line["earlyGroups"] for line in lines) > 0, "the trainer did not wait for the last response"
    assert any(line.get("loan") for line in lines), "whether a machine was loaned, and why not, is reported"


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
                prompt = prompts.prompt(evaluation_key(evaluation.name, ROUNDS, index))
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
def test_transformers_scores_the_export_as_the_last_evaluation_did(ended: Ended, tmp_path: Path) -> None:
    found = read_evaluations(ended.folder)
    steps = sorted((one.name, one.round) for one in found)
    assert steps == [("other", 0), ("other", 4), ("unseen", 0), ("unseen", 3), ("unseen", 4)]
    assert {one.name: one.prompts for one in found} == {"unseen": 20, "other": 12}
    assert all(one.failed == 0 for one in found)
    last = {one.name: one.average for one in found if one.round == ROUNDS}
    expected = asyncio.run(scored_by_transformers(ended.job, Path(ended.status.model_path or ""), tmp_path))
    assert last == pytest.approx(expected, abs=1e-9)
    assert any(0 < average < 1 for average in last.values()), "a comparison of zeros would say nothing"
    assert ended.status.evaluations, "the status shows them"
