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

from hack.chaos.in_pods import failing_engines
from hack.chaos.in_pods.alternate import MODULE, force
from hack.chaos.job import ALTERNATE, FAILING, PATCHING
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchOutcome, SwitchRules
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State

SCRIPT = f"""
import importlib, json, sys
before = sum(type(one).__name__ == "Patch" for one in sys.meta_path)
module, engines = (importlib.import_module(name) for name in ("{MODULE}", "rljob_runtime.rollout.engine_cache"))
policy, cache = module.AdaptiveSwitches, engines.EngineCache
left = sum(type(one).__name__ == "Patch" for one in sys.meta_path)
print(json.dumps([before, left, policy.decide.__module__, policy.is_due.__module__, cache._build.__module__]))
"""


def run(folder: Path) -> list[Any]:
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def test_modules_are_changed_where_the_files_are_mounted(tmp_path: Path) -> None:
    engines = "rljob_runtime.rollout.engine_cache"
    assert engines in failing_engines.PATCHES
    assert run(tmp_path) == [0, 0, MODULE, MODULE, engines]
    shutil.copy(PATCHING, tmp_path / "sitecustomize.py")
    for file in (ALTERNATE, FAILING):
        shutil.copy(file, tmp_path)
    assert run(tmp_path) == [3, 1, "alternate", MODULE, "failing_engines"]


@pytest.mark.parametrize(
    ("changes", "target", "state"),
    [
        pytest.param({}, 2, State.MIGRATE, id="to the next size"),
        pytest.param({"switches": 1}, 2, State.RECOMPUTE, id="without KV every second time"),
        pytest.param({"sizes": ()}, None, None, id="to none if all are refused"),
        pytest.param({"switches": 3}, None, None, id="as often as the job allows"),
        pytest.param({"responses": {"a": 64}}, None, None, id="not with one response"),
        pytest.param({"responses": {"a": 64, "b": 63}}, None, None, id="not before both have full blocks"),
    ],
)
def test_a_machine_switches_at_each_look(changes: dict[str, Any], target: int | None, state: State | None) -> None:
    module = SimpleNamespace(AdaptiveSwitches=type("AdaptiveSwitches", (), {}))
    force(module)
    machine = {"name": "rollout-0", "sizes": (2,), "switches": 0, "responses": {"a": 64, "b": 64}} | changes
    policy = SimpleNamespace(_rules=SwitchRules(frozenset({1, 2}), max_switches=3))
    look = SimpleNamespace(machines=[SimpleNamespace(**machine)])
    found = module.AdaptiveSwitches.decide(policy, look)
    expected = {} if target is None else {"rollout-0": (SwitchOutcome.SWITCHED, target, state)}
    assert {name: (one.outcome, one.target, one.state) for name, one in found.items()} == expected
