"""Local accelerators: whether this machine has as many as a job requests. Otherwise its actors would wait forever."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rljob_api.errors import FieldError
from rljob_api.spec import RLJobSpec

_DEVICE = re.compile(r"nvidia\d+\Z")


def visible_accelerators(environment: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """Count the NVIDIA GPUs of this machine that `CUDA_VISIBLE_DEVICES` lets a process use."""
    present = sum(1 for path in devices.glob("nvidia*") if _DEVICE.match(path.name))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    # CUDA ignores what stands after an index that is no device's.
    named = [name.strip() for name in visible.split(",")]
    usable = next((place for place, name in enumerate(named) if name in ("", "-1")), len(named))
    return min(present, usable)


def requested_accelerators(spec: RLJobSpec) -> int:
    """Count the accelerators of all roles. On one machine the trainer and the rollout machines share none."""
    rollout, trainer = spec.rollout, spec.trainer
    return rollout.machines * rollout.accelerators_per_machine + trainer.replicas * trainer.accelerators_per_replica


def missing_accelerators(spec: RLJobSpec, present: int) -> list[FieldError]:
    """Return an error for each role with accelerators, if the machine has fewer than all roles need together."""
    rollout, trainer = spec.rollout, spec.trainer
    counts = {
        "spec.rollout.acceleratorsPerMachine": (rollout.accelerators_per_machine, rollout.machines, "machines"),
        "spec.trainer.acceleratorsPerReplica": (trainer.accelerators_per_replica, trainer.replicas, "replicas"),
    }
    needed = requested_accelerators(spec)
    if needed <= present:
        return []
    return [
        FieldError(
            path,
            each,
            f"needs {each * number} accelerators for {number} {what}; this machine has {present}, and the job needs "
            f"{needed}. Add --set {path}=0 to compute on its processors, or choose a machine that has them",
        )
        for path, (each, number, what) in counts.items()
        if each
    ]
