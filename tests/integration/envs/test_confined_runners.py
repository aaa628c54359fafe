"""A runner of each kind works as the operator confines it: no named user, a read-only root, and one folder to write."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.protocols.environments import EpisodeReport
from tests.support.envs.agents import agent
from tests.support.envs.confined import USER, confined, confined_runner
from tests.support.envs.packages import ECHO_SERVER, VERIFIERS, new_echo_environment, openenv_python, serving
from tests.support.envs.site import RECORD, Site, call, open_site, scripted
from tests.support.envs.stand_in_openenv import RIGHT, StandInOpenEnv
from tests.support.paths import ROOT
from tests.support.virtual_env import virtual_env

pytestmark = pytest.mark.timeout(900)

SECONDS = 300.0
HERE = Path(sys.executable)
STAND_IN_VERIFIERS = ROOT / "tests/support/envs/stand_in_verifiers"
CODE = '''
"""A tool and a reward. Each writes where it may."""
import os
import tempfile


def add(a: int, b: int) -> int:
    """Add two numbers."""
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
    return a + b


def score(record, messages, answer):
    return {"reward": float(answer == "5"), "user": os.getuid()}
'''
WRITES = """
def written(folder):
    try:
        open(os.path.join(folder, "x"), "w").close()
    except OSError:
        return 0
    return 1

answer = ask(task["messages"])
places = {"home": os.environ["HOME"], "code": os.getcwd(), "root": "/var/tmp"}
result({"reward": float(answer == "5"), "metrics": {name: written(place) for name, place in places.items()}})
"""


async def played(site: Site, **record: Any) -> EpisodeReport:
    episode = await site.put(seconds=SECONDS, record={**RECORD, **record})
    async with asyncio.timeout(SECONDS):
        return await site.environments.reported(episode)


def test_a_confined_program_writes_to_its_folder_only(tmp_path: Path) -> None:
    tries = f"id -u; touch {tmp_path}/tmp/x && echo there; touch {tmp_path}/x || echo nowhere else"
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(confined(tmp_path / "tmp", "sh", "-c", tries), capture_output=True, text=True, check=False)
    assert done.stdout.split("\n") == [str(USER), "there", "nowhere else", ""], done.stderr


async def test_tools_and_a_reward_work_confined(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    environment = {"kind": "Tools", "tools": [{"function": "code.py:add"}], "reward": "code.py:score"}
    async with open_site(scripted(call("add", '{"a": 2, "b": 3}'), "5")) as site, site.stack:
        with confined_runner(HERE, tmp_path, site.url, environment):
            report = await played(site)
        assert (report.reward, report.failed, report.metrics["user"]) == (1.0, None, USER), report
        assert "<|im_start|>tool\n5<|im_end|>" in site.prompts()[1]


async def test_an_agents_program_works_confined(tmp_path: Path) -> None:
    environment: Mapping[str, Any] = {"kind": "Agent", "command": list(agent(tmp_path, WRITES))}
    async with open_site(scripted("5")) as site, site.stack:
        with confined_runner(HERE, tmp_path, site.url, environment):
            report = await played(site)
        assert (report.reward, report.failed) == (1.0, None), report
        assert {name: report.metrics[name] for name in ("home", "code", "root")} == {"home": 1, "code": 0, "root": 0}


async def test_an_openenv_server_is_played_confined(tmp_path: Path) -> None:
    async with StandInOpenEnv().serve() as server, open_site(scripted("1", RIGHT)) as site, site.stack:
        with confined_runner(HERE, tmp_path, site.url, {"kind": "OpenEnv", "openEnv": {"url": server}}):
            report = await played(site)
        assert (report.failed, report.metrics["done"], report.metrics["turns"]) == (None, 1, 2), report


async def test_a_verifiers_environment_is_played_confined(tmp_path: Path) -> None:
    environment = {"kind": "Verifiers", "verifiers": {"id": "sums"}}
    async with open_site(scripted("5")) as site, site.stack:
        with confined_runner(HERE, tmp_path, site.url, environment, STAND_IN_VERIFIERS):
            report = await played(site, task=0)
        assert (report.reward, report.failed) == (1.0, None), report


@pytest.mark.slow
async def test_the_package_verifiers_works_confined_by_the_example(tmp_path: Path) -> None:
    python = virtual_env(tmp_path / "venv", VERIFIERS)
    shutil.copy(ROOT / "examples/verifiers_sums.py", tmp_path)
    environment = {"kind": "Verifiers", "verifiers": {"id": "verifiers_sums"}}
    async with open_site(scripted("7")) as site, site.stack:
        with confined_runner(python, tmp_path, site.url, environment):
            report = await played(site, task=34)
        assert (report.reward, report.failed, report.metrics["characters"]) == (1.0, None, 1), report
        assert "Calculate 3 + 4." in site.prompts()[0]
        site.assert_trained_tokens_are_the_engines(turns=1)


@pytest.mark.slow
async def test_openenvs_own_server_works_confined_with_a_home(tmp_path: Path) -> None:
    """Both containers of the example are confined."""
    python, home = openenv_python(tmp_path / "venv"), tmp_path / "home"
    project = new_echo_environment(python, tmp_path)
    home.mkdir()
    unshare, *line = confined(home, "env", f"HOME={home}", f"TMPDIR={home}", str(python), *ECHO_SERVER)
    with serving(Path(unshare), project, *line) as url:
        async with open_site(scripted("Hello")) as site, site.stack:
            with confined_runner(HERE, tmp_path, site.url, {"kind": "OpenEnv", "openEnv": {"url": url}, "maxTurns": 2}):
                report = await played(site)
            assert (report.failed, report.reward, report.metrics["turns"]) == (None, 1.0, 2), report
