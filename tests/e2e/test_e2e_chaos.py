"""Six faults, one of each kind that a process or a node can have, on a real job on real nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hack.chaos.__main__ import NAMESPACE

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("replica-killed", "relay-killed", "replica-hung", "trainer-killed", "coordinator-killed", "node-off")


def test_a_job_survives_six_kinds_of_faults(installed: None, real_nodes: Any, tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    command = (sys.executable, "-m", "hack.chaos", "--rows", *KINDS, "--faults", str(len(KINDS)), "--json", str(out))
    env = os.environ | {"CLUSTER": "own"}  # `installed` has pointed KUBECONFIG to these nodes
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    subprocess.run(["kubectl", "delete", "namespace", NAMESPACE, "--wait=false"], check=True)

    assert done.stdout.splitlines()[-1] == "chaos: Complete faults=6 unmended=0 lost=0 duplicated=0", done.stdout
    assert done.returncode == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert sorted(found["rows"]) == sorted(KINDS)
    assert all(fault["detected"] and fault["back"] for fault in found["faults"])
    assert found["check"]["findings"] == []
