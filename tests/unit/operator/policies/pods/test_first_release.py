"""Objects that the operator of 0.1.0 made are those that this one looks for, so that an upgrade adopts them.

`objects-0.1.0.json` is what its policies made of `examples/minimal.yaml` as it was then, without the contents. Labels
hold the shape of a pod too: another one would have all pods replaced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rljob_api import load
from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.pods.manifests import render_pod
from rljob_operator.policies.pods.owned_objects import children

PINNED = json.loads(Path(__file__).with_name("objects-0.1.0.json").read_text(encoding="utf-8"))
MACHINES = ((Role.COORDINATOR, "coordinator-0"), (Role.TRAINER, "trainer-0"), (Role.ROLLOUT, "rollout-0"))


def _present(job: RLJob) -> dict[tuple[str, str], Any]:
    """What this operator makes of the job, by kind and name."""
    config = Config()
    pods = (render_pod(job, NewPod(machine=name, role=role, incarnation=1), 1, config) for role, name in MACHINES)
    return {(one["kind"], one["metadata"]["name"]): one for one in (*children(job, 1, 1, config), *pods)}


def test_objects_of_the_first_release_have_the_same_owner_and_labels() -> None:
    present = _present(load(PINNED["job"]))
    for pinned in PINNED["objects"]:
        one = present.get((pinned["kind"], pinned["name"]))
        assert one is not None, pinned
        assert one["apiVersion"] == pinned["apiVersion"]
        assert one["metadata"]["ownerReferences"] == PINNED["ownerReferences"]
        assert one["metadata"]["labels"].items() >= pinned["labels"].items()


def test_the_service_selects_the_coordinator_of_the_first_release() -> None:
    service = _present(load(PINNED["job"]))["Service", "minimal-coordinator"]
    (pod,) = (one for one in PINNED["objects"] if one["name"] == "minimal-coordinator-0-1")
    assert service["spec"]["selector"] == PINNED["selector"]
    assert pod["labels"].items() >= service["spec"]["selector"].items()
