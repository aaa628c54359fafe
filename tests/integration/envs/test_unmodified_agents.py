"""Agents as they are on PyPI work by `kind: Agent`, and what would be trained on is what the engine emitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.envs.packages import MINI_VARIABLES
from tests.support.envs.site import call, open_site, scripted
from tests.support.virtual_env import virtual_env

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # in make test: tests/integration/envs/test_engine_clients.py

SECONDS = 400.0
AGENTS_SDK = '''
import json
import os

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_default_openai_api("chat_completions")
set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


with open(os.environ["RLJOB_TASK"]) as file:
    task = json.load(file)
agent = Agent(name="calculator", instructions="Use the tool.", tools=[add], model=os.environ["OPENAI_MODEL"])
result = Runner.run_sync(agent, task["messages"])
with open(os.environ["RLJOB_RESULT"], "w") as file:
    json.dump({"reward": float(result.final_output == "5")}, file)
'''
MINI = """
exec "$0" --yolo --exit-immediately --cost-limit 0 --model "openai/$OPENAI_MODEL" --output "$HOME/run.json" --task "2+3"
"""
SUBMIT = '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}'


async def test_the_agents_sdk_of_openai(tmp_path: Path) -> None:
    python = virtual_env(tmp_path / "venv", "openai-agents==0.24.0")
    (tmp_path / "agent.py").write_text(AGENTS_SDK)
    said = scripted("I add." + call("add", '{"a": 2, "b": 3}'), call("add", '{"a": 5, "b": 0}'), "5")
    async with open_site(said) as site, site.stack:
        report = await site.report_of(site.agent(tmp_path, str(python), "agent.py"), seconds=SECONDS)
        assert (report.reward, report.failed) == (1.0, None), report.detail
        site.assert_trained_tokens_are_the_engines(turns=3)
        first, second, third = site.prompts()
        assert "Use the tool." in first
        assert "<|im_start|>tool\n5<|im_end|>" in second
        assert third.count("<|im_start|>tool\n5<|im_end|>") == 2


async def test_mini_swe_agent_by_litellm(tmp_path: Path) -> None:
    python = virtual_env(tmp_path / "venv", "mini-swe-agent==2.4.6")
    said = scripted("I calculate." + call("bash", '{"command": "echo $((2+3))"}'), call("bash", SUBMIT))
    async with open_site(said, context=1 << 16) as site, site.stack:
        harness = site.agent(tmp_path, "sh", "-c", MINI, str(python.parent / "mini"), variables=MINI_VARIABLES)
        report = await site.report_of(harness, seconds=SECONDS)
        assert (report.failed, harness.stats.killed) == (None, 0), report.detail
        site.assert_trained_tokens_are_the_engines(turns=2)
        _, second = site.prompts()
        assert '"returncode": 0' in second.rsplit("<|im_start|>tool", 1)[1]
        assert '"output": "5\\n"' in second.rsplit("<|im_start|>tool", 1)[1]
