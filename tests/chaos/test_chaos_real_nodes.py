"""Six faults, one of each kind that a process or a node can have, on a real job on real nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hack import demo
from hack.chaos.__main__ import NAMESPACE

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("replica-killed", "relay-killed", "replica-hung", "trainer-killed", "coordinator-killed", "node-off")


@pytest.fixture
def on_real_nodes(real_nodes: Any) -> Iterator[dict[str, str]]:
    """The variables by which `hack.chaos` takes this cluster; operator and job are gone afterwards."""
    tools = subprocess.run([*demo.CLUSTER, "tools"], capture_output=True, text=True, check=True).stdout.strip()
    env = os.environ | {
        "CLUSTER": "own",
        "KUBECONFIG": str(real_nodes.kubeconfig),
        "PATH": tools + os.pathsep + os.environ["PATH"],
    }
    yield env
    for command in (
        ("kubectl", "delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait", "--timeout=120s"),
        ("helm", "uninstall", "rljob", "-n", demo.SYSTEM_NAMESPACE, "--wait"),
    ):
        subprocess.run(command, env=env, check=True)


def test_a_job_survives_six_kinds_of_faults(on_real_nodes: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    command = (sys.executable, "-m", "hack.chaos", "--rows", *KINDS, "--faults", str(len(KINDS)), "--json", str(out))
    done = subprocess.run(command, cwd=ROOT, env=on_real_nodes, stdout=subprocess.PIPE, text=True, check=False)

    assert done.stdout.splitlines()[-1] == "chaos: Complete faults=6 unmended=0 lost=0 duplicated=0", done.stdout
    assert done.returncode == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert sorted(found["rows"]) == sorted(KINDS)
    assert all(fault["detected"] and fault["back"] for fault in found["faults"])
    assert found["check"]["findings"] == []
