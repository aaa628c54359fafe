"""Bad accelerators and bad layouts of engines."""

from __future__ import annotations

from rljob_api.errors import ABSENT
from tests.support.api.invalid_specs.case import Case, one

_GPUS = {"spec.rollout.acceleratorsPerMachine": 2}
_CLAIM_TEMPLATE = "spec.accelerator.claimTemplate"

ACCELERATORS = [
    Case({**_GPUS, "spec.accelerator": {}}, "spec.accelerator", "must be exactly one of resource,", value=ABSENT),
    Case(
        {**_GPUS, "spec.rollout.accelerator": {"resource": "amd.com/gpu", "deviceClass": "gpu.amd.com"}},
        "spec.rollout.accelerator",
        "must be exactly one of resource, deviceClass, claimTemplate, or kind: None",
        value="resource, deviceClass",
    ),
    Case(
        {"spec.trainer": {"acceleratorsPerReplica": 1, "accelerator": {"kind": "None", "claimTemplate": "gpus"}}},
        "spec.trainer.accelerator",
        "must be exactly one of",
        value="claimTemplate, kind",
    ),
    Case(
        {**_GPUS, "spec.accelerator": {"kind": "DeviceClass"}},
        "spec.accelerator.kind",
        "must be one of 'None'",
        value="DeviceClass",
    ),
    Case(
        {**_GPUS, "spec.accelerator": {"resource": "gpu"}},
        "spec.accelerator.resource",
        "must be a qualified name",
        value="gpu",
    ),
    Case(
        {**_GPUS, "spec.accelerator": {"deviceClass": "GPU"}},
        "spec.accelerator.deviceClass",
        "must be a DNS name",
        value="GPU",
    ),
    Case(
        {**_GPUS, "spec.accelerator": {"claimTemplate": "other-team/gpus"}},
        _CLAIM_TEMPLATE,
        "must be the name of a ResourceClaimTemplate in the job's own namespace",
        value="other-team/gpus",
    ),
    one(
        "spec.accelerator",
        {"deviceClass": "gpu.nvidia.com"},
        "set spec.trainer.acceleratorsPerReplica or spec.rollout.acceleratorsPerMachine, or leave it out",
    ),
    Case(
        {**_GPUS, "spec.trainer.accelerator": {"resource": "amd.com/gpu"}},
        "spec.trainer.accelerator",
        "is for pods with accelerators: set acceleratorsPerReplica",
        value={"resource": "amd.com/gpu"},
    ),
    Case(
        {"spec.trainer.acceleratorsPerReplica": 1, "spec.rollout.accelerator": {"deviceClass": "gpu.amd.com"}},
        "spec.rollout.accelerator",
        "is for pods with accelerators: set acceleratorsPerMachine",
        value={"deviceClass": "gpu.amd.com"},
    ),
    Case(
        {**_GPUS, "spec.accelerator": {"kind": "None"}, "spec.scheduling.acceleratorResource": "amd.com/gpu"},
        "spec.scheduling.acceleratorResource",
        "must be left out: spec.accelerator takes its place",
        value="amd.com/gpu",
    ),
]

_ADAPTIVE = "spec.adaptiveTensorParallel"
_SLOTS = {"spec.rollout.slotsPerMachine": 4, "spec.rollout.allowedTensorParallelSizes": [1, 2]}
_FOUR = {"spec.rollout.acceleratorsPerMachine": 4, "spec.rollout.allowedTensorParallelSizes": [1, 2]}

SWITCHES = [
    one(f"{_ADAPTIVE}.enabled", "Sometimes", "must be true, false or Auto"),
    one(f"{_ADAPTIVE}.enabled", True, "at least two sizes in spec.rollout.allowedTensorParallelSizes (absent)", False),
    Case(
        {"spec.rollout.allowedTensorParallelSizes": [1], f"{_ADAPTIVE}.enabled": True},
        f"{_ADAPTIVE}.enabled",
        "allowedTensorParallelSizes ([1]): there is nothing to switch to",
        server=False,
    ),
    Case(
        {**_FOUR, "spec.mode": "Asynchronous", f"{_ADAPTIVE}.enabled": "Auto"},
        f"{_ADAPTIVE}.enabled",
        "must be false in mode Asynchronous: a machine there may run weights that its relay does not hold any more",
        server=False,
    ),
    Case({**_FOUR, f"{_ADAPTIVE}.sizes": [2]}, f"{_ADAPTIVE}.sizes", "must hold at least two sizes"),
    Case({**_FOUR, f"{_ADAPTIVE}.sizes": []}, f"{_ADAPTIVE}.sizes", "must have 1 or more entries"),
    Case({**_FOUR, f"{_ADAPTIVE}.sizes": [1, 2, 2]}, f"{_ADAPTIVE}.sizes[2]", "must be listed once", value=2),
    Case(
        {**_FOUR, f"{_ADAPTIVE}.sizes": [1, 3]},
        f"{_ADAPTIVE}.sizes[1]",
        "must divide acceleratorsPerMachine (4): tensor parallelism stays inside a machine",
        value=3,
    ),
    Case(
        {**_SLOTS, f"{_ADAPTIVE}.sizes": [1, 3]},
        f"{_ADAPTIVE}.sizes[1]",
        "must divide slotsPerMachine (4): tensor parallelism stays inside a machine",
        value=3,
    ),
    Case(
        {**_FOUR, f"{_ADAPTIVE}.sizes": [1, 4]},
        f"{_ADAPTIVE}.sizes[1]",
        "must be one of spec.rollout.allowedTensorParallelSizes ([1, 2])",
        value=4,
    ),
    Case(
        {"spec.rollout.acceleratorsPerMachine": 2, f"{_ADAPTIVE}.sizes": [1, 2]},
        f"{_ADAPTIVE}.sizes",
        "needs spec.rollout.allowedTensorParallelSizes, which must hold them",
    ),
    one(f"{_ADAPTIVE}.state", "Move", "must be one of 'Auto', 'Recompute' or 'Migrate'"),
    one(f"{_ADAPTIVE}.minGain", 1, "must be less than 1"),
    one(f"{_ADAPTIVE}.minGain", -0.1, "must be at least 0"),
    one(f"{_ADAPTIVE}.maxSwitches", 0, "must be at least 1"),
]
