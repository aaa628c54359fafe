"""The guide *Bring your own agent* works as it stands: its tools, its reward, its program and its manifests."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.spec.environments import Environment
from rljob_env.config import AGENT, OPEN_ENV, load_config
from rljob_env.episode import Harness
from tests.support.envs.site import call, open_site, scripted
from tests.support.paths import ROOT

GUIDE = (ROOT / "docs/guides/bring-your-own-agent.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for block in blocks("python"):
        name = block.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(block)
    assert {path.name for path in tmp_path.iterdir()} == {"calculator.py", "score.py", "agent.py"}
    return tmp_path


def environment(index: int) -> dict[str, Any]:
    (found,) = yaml.safe_load(blocks("yaml")[index])["environments"]
    return Environment.model_validate(found).runner_options()


def settings(root: Path, index: int) -> Any:
    """Return the settings of a runner as `rljob run` writes them for an environment of the guide."""
    given = {"url": "http://gateway", "keyFile": "key", "root": str(root), "environment": environment(index)}
    (root / "config.json").write_text(json.dumps(given))
    return load_config(str(root / "config.json"), {})


async def test_the_tools_and_the_reward_of_the_guide_score_an_episode(root: Path) -> None:
    config = settings(root, 0).environment
    async with open_site(scripted(call("add", '{"a": 2, "b": 3}'), "5")) as site, site.stack:
        functions = [tool.function for tool in config.tools]
        harness: Harness = site.tools(root, *functions, reward=config.reward, max_turns=config.max_turns)
        report = await site.report_of(harness)
        assert (report.reward, report.metrics["calls"], report.failed) == (1.0, 1, None)
        assert "the first number" in site.prompts()[0]


async def test_the_program_of_the_guide_asks_the_model_and_is_rewarded(root: Path) -> None:
    config = settings(root, 1).environment
    assert (config.kind, config.command[0]) == (AGENT, "python")
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(root, sys.executable, *config.command[1:]), seconds=120.0)
        assert (report.reward, report.metrics["characters"], report.failed) == (1.0, 1, None)


def test_the_environment_server_of_the_guide_is_that_of_a_runner(tmp_path: Path) -> None:
    config = settings(tmp_path, 2).environment
    assert (config.kind, config.open_env_url) == (OPEN_ENV, "http://wordle:8000")


def test_the_settings_of_the_guide_are_those_of_a_runner(tmp_path: Path) -> None:
    (block,) = blocks("json")
    (tmp_path / "config.json").write_text(block)
    config = load_config(str(tmp_path / "config.json"), {})
    assert (config.root, config.environment.name) == (tmp_path, "calc")
