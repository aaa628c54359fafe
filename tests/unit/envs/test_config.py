"""A runner's settings come from a file and variables, and wrong ones are refused with their field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rljob_env.config import BadConfig, Tool, VerifiersConfig, load_config, read_key
from rljob_env.packages import NEEDED, check_packages

TOOLS = {"name": "calc", "kind": "Tools", "tools": [{"function": "tools.py:add"}]}
AGENT = {"name": "calc", "kind": "Agent", "command": ["python", "agent.py"]}
VERIFIERS = {"name": "sums", "kind": "Verifiers", "verifiers": {"id": "gsm8k", "args": {"agent": {"max_turns": 2}}}}
OPEN_ENV = {"name": "echo", "kind": "OpenEnv", "openEnv": {"url": "http://echo:8000"}}


def written(folder: Path, environment: Any = None, **more: Any) -> str:
    given = {
        "url": "http://gateway",
        "keyFile": "key",
        "environment": TOOLS if environment is None else environment,
        **more,
    }
    path = folder / "config.json"
    path.write_text(json.dumps(given))
    return str(path)


def test_an_environment_is_read_as_the_job_states_it(tmp_path: Path) -> None:
    of_the_job = {
        **TOOLS,
        "tools": [{"function": "tools.py:add", "mcp": None}, {"mcp": {"url": "http://search/mcp"}}],
        "command": None,
        "reward": "rewards.py:right",
        "maxTurns": 4,
        "timeoutSeconds": 30.0,
        "toolSeconds": 120,
        "rewardSeconds": 600.5,
        "runners": 2,
        "episodesPerRunner": 3,
    }
    config = load_config(written(tmp_path, of_the_job, graceSeconds=3), {})
    assert config.root == tmp_path
    assert config.key_file == tmp_path / "key"
    assert config.grace_seconds == 3
    assert config.environment.tools == (Tool(function="tools.py:add"), Tool(mcp_url="http://search/mcp"))
    assert (config.environment.tool_seconds, config.environment.reward_seconds) == (120.0, 600.5)
    assert (config.environment.reward, config.environment.max_turns, config.environment.episodes) == (
        "rewards.py:right",
        4,
        3,
    )


def test_an_environment_server_is_named_by_its_address(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, OPEN_ENV), {}).environment.open_env_url == "http://echo:8000"


def test_an_environment_of_a_package_is_named_by_its_id_and_settings(tmp_path: Path) -> None:
    found = load_config(written(tmp_path, VERIFIERS), {}).environment.verifiers
    assert found == VerifiersConfig("gsm8k", {"agent": {"max_turns": 2}})


def test_a_kind_without_its_package_is_refused_before_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("Tools", "Agent", "OpenEnv"):
        check_packages(kind)
    monkeypatch.setitem(NEEDED, "OpenEnv", ("a_package_that_is_absent", "rljob-env[openenv]"))
    with pytest.raises(BadConfig, match=re.escape("pip install 'rljob-env[openenv]'")):
        check_packages("OpenEnv")


def test_variables_replace_what_the_file_says(tmp_path: Path) -> None:
    variables = {
        "RLJOB_ENV_CONFIG": written(tmp_path, AGENT),
        "RLJOB_ENV_URL": "http://other",
        "RLJOB_ENV_KEY_FILE": "/keys/calc",
        "RLJOB_ENV_EPISODES": "5",
    }
    config = load_config(None, variables)
    assert (config.url, config.key_file, config.environment.episodes) == ("http://other", Path("/keys/calc"), 5)


@pytest.mark.parametrize(
    ("environment", "more", "field"),
    [
        ({**TOOLS, "kind": "Gym"}, {}, "environment.kind is 'Gym'; Tools, Agent, OpenEnv, Verifiers would be right"),
        ({**VERIFIERS, "verifiers": {"args": {}}}, {}, "environment.verifiers.id"),
        ({**VERIFIERS, "verifiers": {"id": "gsm8k", "args": 1}}, {}, "environment.verifiers.args: an object"),
        ({**VERIFIERS, "verifiers": {"id": "gsm8k", "version": 1}}, {}, "environment.verifiers.version is not known"),
        ({**TOOLS, "openEnv": {"url": "u"}}, {}, "environment.openEnv is not known"),
        ({**OPEN_ENV, "openEnv": None}, {}, "environment.openEnv: an object"),
        ({**OPEN_ENV, "openEnv": {}}, {}, "environment.openEnv.url"),
        ({**OPEN_ENV, "openEnv": {"url": "u", "image": "i"}}, {}, "environment.openEnv.image is not known"),
        ({**TOOLS, "image": "x"}, {}, "environment.image is not known"),
        ({**TOOLS, "command": ["x"]}, {}, "environment.command is not known"),
        ({**TOOLS, "tools": [{}]}, {}, "environment.tools[0]"),
        ({**TOOLS, "tools": [{"function": "a:b", "mcp": {"url": "u"}}]}, {}, "environment.tools[0]"),
        ({**TOOLS, "tools": [{"mcp": {}}]}, {}, "environment.tools[0].mcp.url"),
        ({**TOOLS, "maxTurns": 0}, {}, "environment.maxTurns is 0"),
        ({**TOOLS, "toolSeconds": "1"}, {}, "environment.toolSeconds"),
        ({**AGENT, "command": []}, {}, "either command or function"),
        ({**AGENT, "function": "a:b"}, {}, "either command or function"),
        ({**AGENT, "reset": "Image"}, {}, "environment.reset is 'Image'; Process, GitRestore or Pod would be right"),
        ({**AGENT, "reset": "Pod"}, {}, "environment.episodesPerRunner is 8; 1 would be right with reset Pod"),
        ({**AGENT, "reset": "Pod", "episodesPerRunner": 1, "checkout": "repo"}, {}, "is for reset GitRestore only"),
        ({**AGENT, "reset": "Pod", "episodesPerRunner": 1}, {}, "podFolder: a text would be right"),
        ({**AGENT, "checkout": "repo"}, {}, "environment.checkout is for reset GitRestore only"),
        ({**TOOLS, "reset": "Process"}, {}, "environment.reset is not known"),
        ({**AGENT, "command": ["python", 3]}, {}, "texts"),
        ({**AGENT, "variables": {"A": 1}}, {}, "texts"),
        ({"kind": "Agent", "command": ["x"]}, {}, "environment.name"),
        (TOOLS, {"heartbeatSeconds": -1}, "heartbeatSeconds is -1"),
        (TOOLS, {"pods": 3}, "pods is not known"),
        (TOOLS, {"url": ""}, "url"),
        ([], {}, "environment: an object"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, environment: Any, more: dict[str, Any], field: str) -> None:
    with pytest.raises(BadConfig) as caught:
        load_config(written(tmp_path, environment, **more), {})
    assert field in str(caught.value)


def test_a_file_or_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="RLJOB_ENV_CONFIG"):
        load_config(None, {})
    with pytest.raises(BadConfig, match=r"absent\.json"):
        load_config(str(tmp_path / "absent.json"), {})
    (tmp_path / "key").write_text("\n")
    with pytest.raises(BadConfig, match="is empty"):
        read_key(tmp_path / "key")
    with pytest.raises(BadConfig, match="episodesPerRunner"):
        load_config(written(tmp_path), {"RLJOB_ENV_EPISODES": "many"})
