"""`rljob bench quality`: what its figures say. The jobs themselves run in the benchmark."""

import json

import pytest

from rljob_bench import quality
from rljob_bench.quality import QUICK, TECHNIQUES, Curve, draw, figures, measure


def curve(technique, seed, rewards, evaluated):
    return Curve(technique, seed, rewards, [8 * (number + 1) for number in range(len(rewards))], evaluated)


def curves(**evaluated):
    """Two seeds of each technique; plain ends at 0.5 and 0.7."""
    return [
        curve(name, seed, [0.2, 0.4], evaluated.get(name.replace(" ", "_"), 0.5 + 0.2 * seed))
        for name in TECHNIQUES
        for seed in (0, 1)
    ]


def test_a_technique_that_learns_less_is_seen():
    found = {figure["name"]: figure for figure in figures(curves(stream_training=0.3))}
    assert found["reward over all prompts: plain"]["value"] == pytest.approx(0.3)
    assert found["reward of the final model: stream training over plain"]["value"] == pytest.approx(0.5)
    assert found["reward of the final model: tail batching over plain"]["value"] == pytest.approx(1.0)


def test_what_seeds_alone_do_is_the_limit():
    (figure,) = (f for f in figures(curves()) if f["name"] == "reward of the final model: plain")
    assert figure["limit"] == pytest.approx(0.1414 / 0.6, rel=1e-3)


def test_a_job_that_has_ended_is_not_run_again(tmp_path):
    (seed,) = QUICK.seeds
    for technique in TECHNIQUES:
        folder = tmp_path / f"{technique.replace(' ', '-')}-{seed}"
        folder.mkdir()
        (folder / "curve.json").write_text(json.dumps(vars(curve(technique, seed, [0.2, 0.6], 0.5))))
    result = measure(QUICK, tmp_path)
    assert [row["mean"] for row in result["rows"]] == [pytest.approx(0.4)] * len(TECHNIQUES)
    draw(result, tmp_path / "curves.svg")
    assert "prompts trained on" in (tmp_path / "curves.svg").read_text()


def test_an_ended_job_keeps_its_curve_and_not_its_weights(tmp_path, monkeypatch):
    """Fifteen jobs of SmolLM2 would leave 64 GB."""

    def train(job, workdir):
        for weights in ("checkpoints", "model"):
            (workdir / weights).mkdir(parents=True)
            (workdir / weights / "weights.bin").write_bytes(b"weights")
        line = {"round": 1, "reward": 0.25}
        (workdir / "rounds.jsonl").write_text(json.dumps(line) + "\n")
        return str(workdir / "model")

    monkeypatch.setattr(quality, "_train", train)
    measure(QUICK, tmp_path)
    assert not list(tmp_path.rglob("weights.bin"))
    assert (
        len(list(tmp_path.rglob("curve.json")))
        == len(list(tmp_path.glob("*/evaluated/rounds.jsonl")))
        == len(TECHNIQUES)
    )
