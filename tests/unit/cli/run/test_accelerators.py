"""Accelerators of this machine, and whether a job requests more."""

from __future__ import annotations

import pytest
import yaml

from rljob_api import load
from rljob_runtime.cli.run.accelerators import missing_accelerators, visible_accelerators
from tests.support.paths import ROOT

EXAMPLE = yaml.safe_load((ROOT / "examples" / "minimal.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("", 0), ("-1", 0), ("0", 1), ("0,1", 2), ("0,1,2,3", 2), ("1,-1,0", 1)]
)
def test_gpus_are_counted_as_cuda_lets_them_be_seen(tmp_path, visible, count):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_accelerators(environment, tmp_path) == count


@pytest.mark.parametrize(
    ("machine", "replica", "present", "fields"),
    [
        (0, 0, 0, []),
        (1, 1, 3, []),
        (1, 1, 2, ["rollout.acceleratorsPerMachine", "trainer.acceleratorsPerReplica"]),
        (0, 1, 0, ["trainer.acceleratorsPerReplica"]),
        (2, 0, 3, ["rollout.acceleratorsPerMachine"]),
    ],
)
def test_too_few_accelerators_are_told_by_field(machine, replica, present, fields):
    spec = {
        **EXAMPLE["spec"],
        "rollout": {**EXAMPLE["spec"]["rollout"], "machines": 2, "acceleratorsPerMachine": machine},
        "trainer": {"replicas": 1, "acceleratorsPerReplica": replica},
    }
    spec["rollout"].pop("slotsPerMachine", None)
    found = missing_accelerators(load({**EXAMPLE, "spec": spec}).spec, present)
    assert [error.path for error in found] == [f"spec.{field}" for field in fields]
    assert all(f"this machine has {present}, and the job needs {2 * machine + replica}" in e.message for e in found)
