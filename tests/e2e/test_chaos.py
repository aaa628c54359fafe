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
from tests.support.paths import ROOT
from tests.support.rows import slow

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(1800)]

FEW = ("node-off",)
"""A node with all its processes. test_real_nodes kills a replica, test_ray_head a coordinator."""
SWITCH = ("switch-killed-loading",)
"""A machine of a job whose machines switch their tensor parallel size: its new engines are killed as they load."""
EVERY = (*FEW, "replica-hung", "relay-killed", "trainer-killed", "replica-killed", "coordinator-killed")


@pytest.mark.parametrize("kinds", [FEW, *slow(EVERY, SWITCH)], ids=["few", "every", "switch"])
def test_a_job_survives_every_kind_of_fault(
    kinds: tuple[str, ...], installed: None, real_nodes: Any, tmp_path: Path
) -> None:
    out = tmp_path / "chaos.json"
    command = (sys.executable, "-m", "hack.chaos", "--rows", *kinds, "--faults", str(len(kinds)), "--json", str(out))
    env = os.environ | {"CLUSTER": "own"}  # `installed` has pointed KUBECONFIG to these nodes
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    subprocess.run(["kubectl", "delete", "namespace", NAMESPACE, "--wait=false"], check=True)

    summary = f"chaos: Complete faults={len(kinds)} unmended=0 lost=0 duplicated=0"
    assert done.stdout.splitlines()[-1] == summary, done.stdout
    assert done.returncode == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert sorted(found["rows"]) == sorted(kinds)
    assert all(fault["detected"] and fault["back"] for fault in found["faults"])
    assert found["check"]["findings"] == []
