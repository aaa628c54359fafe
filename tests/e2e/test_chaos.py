"""One fault of each kind that a process or a node can have, on a real job on real nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hack.chaos.__main__ import NAMESPACE
from hack.chaos.rows import ROWS
from tests.support.paths import ROOT
from tests.support.rows import slow

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(1800)]

FEW = ("node-off",)
"""A node with all its processes. test_real_nodes kills a replica, test_ray_head a coordinator."""
SWITCH = ("switch-killed-loading",)
"""A machine of a job whose machines switch their tensor parallel size: its new engines are killed as they load."""
EVERY = (*FEW, "replica-hung", "relay-killed", "trainer-killed", "replica-killed", "coordinator-killed")
OF_AGENTS = ("gateway-killed", "runner-deleted")
"""On a job whose responses are episodes. test_agents deletes a runner and kills the gateway in each `make test`."""
OF_TOOLS = (*OF_AGENTS, "tool-server-killed")
"""Its tool is a server, but for long episodes."""
TURNS, EPISODES = 20, 40


@pytest.mark.parametrize("kinds", [FEW, *slow(EVERY, SWITCH, OF_TOOLS)], ids=["few", "every", "switch", "agents"])
def test_a_job_survives_every_kind_of_fault(
    kinds: tuple[str, ...], installed: None, real_nodes: Any, tmp_path: Path
) -> None:
    done, found = campaign(tmp_path, kinds)
    summary = f"chaos: Complete faults={len(kinds)} unmended=0 lost=0 duplicated=0 leaked=0"
    assert done.stdout.splitlines()[-1] == summary, done.stdout
    assert done.returncode == 0
    assert sorted(found["rows"]) == sorted(kinds)
    assert all(fault["back"] for fault in found["faults"])
    assert all(fault["detected"] for fault in found["faults"] if ROWS[fault["row"]].must_be_seen)
    assert found["check"]["findings"] == []


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--programs",)], ids=["tools", "programs"])
def test_long_episodes_survive_the_loss_of_a_gateway_and_of_a_runner(
    more: tuple[str, ...], installed: None, real_nodes: Any, tmp_path: Path
) -> None:
    done, found = campaign(tmp_path, OF_AGENTS, "--turns", str(TURNS), "--episodes", str(EPISODES), *more)
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("chaos: Complete faults=2 unmended=0 lost=0 duplicated=0 leaked=0 episodes="), last
    for nothing in ("tokens lost=0", "fake zeros=0", "reencoded=0"):
        assert nothing in last
    # A program has tools of its own, which it calls again.
    assert ("tool calls twice=0" in last) != bool(more)
    assert found["episodes"]["resumed"] > 0
    assert found["episodes"]["episodes"] >= EPISODES
    assert found["episodes"]["turns"] == TURNS * found["episodes"]["episodes"]
    assert found["check"]["findings"] == []


def campaign(folder: Path, kinds: tuple[str, ...], *more: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run a campaign of one fault of each kind; return what it printed, and its result."""
    out = folder / "chaos.json"
    command = (sys.executable, "-m", "hack.chaos", "--rows", *kinds, "--faults", str(len(kinds)), "--json", str(out))
    env = os.environ | {"CLUSTER": "own"}  # `installed` has pointed KUBECONFIG to these nodes
    done = subprocess.run((*command, *more), cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    subprocess.run(["kubectl", "delete", "namespace", NAMESPACE, "--wait=false"], check=True)
    return done, json.loads(out.read_text(encoding="utf-8"))
