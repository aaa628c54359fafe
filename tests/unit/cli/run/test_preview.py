"""A preview tells whether machines switch their tensor parallel size inside a round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api import load
from rljob_runtime.cli.run.preview import present_folder, preview
from rljob_runtime.models import product_dtype
from rljob_runtime.models.source import CONFIGS, FOLDERS, PACKAGES, resolve
from tests.support.api import jobs

LABEL = "tensor parallelism"


def told(tmp_path: Path, heads: int = 4, **edits: Any) -> str | None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": heads,
        "num_hidden_layers": 2,
        "num_key_value_heads": heads,
        "vocab_size": 256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = {f"spec.{path}": value for path, value in edits.items()}
    job = load(jobs.job({"spec.model.source": str(tmp_path), "spec.rollout.slotsPerMachine": 4, **spec}))
    return preview(job.spec, tmp_path, 0).get(LABEL)


def test_it_shows_what_runs_each_environment_and_its_limits(tmp_path: Path) -> None:
    tools = [{"function": "calculator.py:evaluate"}, {"mcp": {"url": "http://search/mcp"}}]
    spec = {
        "spec.environments": [
            {"name": "calc", "kind": "Tools", "tools": tools, "maxTurns": 6},
            {"name": "swe", "kind": "Agent", "command": ["sh", "-c", "run it"], "runners": 2, "timeoutSeconds": 0.5},
            {"name": "own", "kind": "Agent", "function": "agent.py:solve"},
        ],
        "spec.episode": {"maxTurns": 8},
    }
    assert preview(load(jobs.job(spec)).spec, tmp_path, 0)["environments"] == (
        "calc (tools calculator.py:evaluate, http://search/mcp, 1 x 8 episodes concurrently, at most 6 turns and 300 s "
        "each); swe (sh -c 'run it', 2 x 8 episodes concurrently, at most 8 turns and 0.5 s each); "
        "own (function agent.py:solve, 1 x 8 episodes concurrently, at most 8 turns and 300 s each)"
    )
    assert "environments" not in preview(load(jobs.job()).spec, tmp_path, 0)


@pytest.mark.parametrize(
    ("adaptive", "said"),
    [
        ({"enabled": False}, None),
        (
            {"enabled": True},
            "a machine switches between 1, 2, 4 inside a round if that saves 0.03 of the time that is left "
            "(maxSwitches: 3); keys and values are moved or computed again, whichever is faster",
        ),
        (
            {"enabled": "Auto", "sizes": [4, 2], "state": "Recompute", "maxSwitches": 1, "minGain": 0.1},
            "a machine switches between 2, 4 inside a round if that saves 0.1 of the time that is left "
            "(maxSwitches: 1); keys and values are computed again",
        ),
    ],
)
def test_it_names_sizes_and_limits(tmp_path: Path, adaptive: dict[str, Any], said: str | None) -> None:
    sizes = {"rollout.allowedTensorParallelSizes": [1, 2, 4]}
    assert told(tmp_path, **sizes, adaptiveTensorParallel=adaptive) == said


def test_auto_with_one_size_never_switches(tmp_path: Path) -> None:
    said = told(tmp_path, adaptiveTensorParallel={"enabled": "Auto"})
    assert said == "never switched inside a round: rollout.allowedTensorParallelSizes has no two sizes"


def test_a_size_that_does_not_split_the_heads_is_named(tmp_path: Path) -> None:
    sizes = {"rollout.allowedTensorParallelSizes": [1, 2]}
    said = told(tmp_path, heads=9, **sizes, adaptiveTensorParallel={"enabled": True})
    assert said is not None
    assert said.startswith("the job would end at its start: tensor parallel size 2 does not split the 9 heads")


@pytest.mark.parametrize(("has_bfloat16", "size"), [(True, "0.2 MiB"), (False, "0.4 MiB")])
def test_it_names_the_memory_of_weights_as_replicas_keep_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_bfloat16: bool, size: str
) -> None:
    monkeypatch.setattr(product_dtype, "multiplies_bfloat16", lambda: has_bfloat16)
    told(tmp_path)
    job = load(jobs.job({"spec.model.source": str(tmp_path), "spec.model.dtype": "bfloat16"}))
    assert f"need {size} each" in preview(job.spec, tmp_path, 0)["memory"]


def test_the_folder_of_a_model_is_found_where_a_run_finds_it(tmp_path: Path) -> None:
    assert present_folder("/models/a", tmp_path) == Path("/models/a")
    assert (
        present_folder("package://rljob/toy-caller", tmp_path) == resolve("package://rljob/toy-caller", tmp_path).path
    )
    assert set(FOLDERS) == set(PACKAGES) == set(CONFIGS)
    for source in ("hf://acme/absent", "pvc://claim/model", "package://absent"):
        assert present_folder(source, tmp_path) is None
