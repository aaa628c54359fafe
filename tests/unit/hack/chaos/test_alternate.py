"""Machines of the switching job switch at each look: the policy is replaced where it is imported, and nowhere else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hack.chaos.in_pods.alternate import MODULE, force
from hack.chaos.job import ALTERNATE
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchOutcome, SwitchRules
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State

SCRIPT = f"""
import importlib, json, sys
before = [type(one).__name__ for one in sys.meta_path]
module = importlib.import_module("{MODULE}")
print(json.dumps([before[0], module.AdaptiveSwitches.decide.__module__, module.AdaptiveSwitches.is_due.__module__]))
"""


def run(folder: Path) -> list[str]:
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_policy_is_replaced_where_the_file_is_mounted(tmp_path: Path) -> None:
    first, decides, due = run(tmp_path)
    assert first != "Patch"
    assert (decides, due) == (MODULE, MODULE)
    shutil.copy(ALTERNATE, tmp_path / "sitecustomize.py")
    assert run(tmp_path) == ["Patch", "sitecustomize", MODULE]


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        pytest.param({}, 2, id="to the next size"),
        pytest.param({"sizes": ()}, None, id="to none if all are refused"),
        pytest.param({"switches": 3}, None, id="as often as the job allows"),
        pytest.param({"responses": {"a": 64}}, None, id="not with one response"),
        pytest.param({"responses": {"a": 64, "b": 63}}, None, id="not before both have full blocks"),
    ],
)
def test_a_machine_switches_at_each_look(changes: dict[str, Any], target: int | None) -> None:
    module = SimpleNamespace(AdaptiveSwitches=type("AdaptiveSwitches", (), {}))
    force(module)
    machine = {"name": "rollout-0", "sizes": (2,), "switches": 0, "responses": {"a": 64, "b": 64}} | changes
    policy = SimpleNamespace(_rules=SwitchRules(frozenset({1, 2}), max_switches=3))
    look = SimpleNamespace(machines=[SimpleNamespace(**machine)])
    found = module.AdaptiveSwitches.decide(policy, look)
    assert {name: one.target for name, one in found.items()} == ({} if target is None else {"rollout-0": target})
    assert {(one.outcome, one.state) for one in found.values()} <= {(SwitchOutcome.SWITCHED, State.MIGRATE)}
