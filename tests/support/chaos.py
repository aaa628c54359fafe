"""Objects of a job as the API server has them, and looks at a job in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hack.chaos.observation import Observation, Pod, observe


def pod(machine: str, node: str, incarnation: int = 1, *, ready: bool = True, **metadata: Any) -> dict[str, Any]:
    role = machine.rpartition("-")[0]
    labels = {"rljob.dev/machine": machine, "rljob.dev/role": role, "rljob.dev/incarnation": str(incarnation)}
    return {
        "metadata": {"name": f"chaos-{machine}-{incarnation}", "labels": labels, **metadata},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


PODS = [
    pod("coordinator-0", "node-1"),
    pod("trainer-0", "node-1"),
    *(pod(f"rollout-{index}", f"node-{index + 2}") for index in range(3)),
]
JOB = {
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Complete", "status": "False"}],
        "rollout": {"desired": 3, "ready": 3},
        "runtime": {
            "round": 10,
            "term": 1,
            "stage": "Training",
            "weightVersion": 11,
            "relay": {"epoch": 1, "chain": ["rollout-0", "rollout-1", "rollout-2"]},
            "checkpoint": {"round": 10, "name": "step-00000010"},
        },
    }
}
HEALTHY = observe(0.0, JOB, PODS)


def without(seen: Observation, machine: str) -> Observation:
    """Its pod is not ready, and the chain is closed over it."""
    pods = tuple(replace(one, ready=False) if one.machine == machine else one for one in seen.pods)
    return replace(seen, pods=pods, chain=tuple(name for name in seen.chain if name != machine))


def filled_again(seen: Observation, machine: str, node: str = "node-2", *, ready: bool = True) -> Observation:
    """A new pod of it beside the old one."""
    old = seen.pod_of(machine)
    assert old is not None
    fresh = Pod(f"{machine}-new", machine, old.role, old.incarnation + 1, node, ready, live=True)
    chain = (*(name for name in seen.chain if name != machine), *([machine] if ready else []))
    return replace(seen, pods=(*seen.pods, fresh), chain=chain)
