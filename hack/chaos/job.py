"""Job of a chaos campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rljob_api.parsing import yaml_text

ROOT = Path(__file__).resolve().parents[2]
JOB = "chaos"
KEEPS, ROLLS = "rljob-chaos-keeps", "rljob-chaos-rolls"
"""Labels of the node of coordinator and trainer, and of the nodes of rollout machines."""


CODE = ROOT / "examples/calculator.py"


def manifest(mode: str, machines: int, moves: bool = False, agents: bool = False) -> list[dict[str, Any]]:
    """Return the smallest example, or that of `agents`, with `machines` rollout machines and unlimited rounds.

    Coordinator and trainer have their own node, so that every other node may be lost. With `moves`, the coordinator is
    on one of those and may lose it. Runners are on nodes that may be lost.
    """
    example = "calculator-agent" if agents else "minimal"
    documents = yaml_text.documents((ROOT / f"examples/{example}.yaml").read_text(encoding="utf-8"))
    job: dict[str, Any] = next(one for one in documents if one and one["kind"] == "RLJob")
    spec = job["spec"]
    container = spec["rollout"]["template"]["spec"]["containers"]

    def template(label: str, **more: Any) -> dict[str, Any]:
        return {"spec": {"containers": container, "nodeSelector": {label: "true"}, **more}}

    job["metadata"] = {"name": JOB}
    spec |= {"mode": mode, "rounds": 1_000_000, "checkpoint": {"volumeClaimName": JOB, "everyRounds": 10, "keep": 3}}
    spec["data"]["prompts"]["reasoningGym"]["size"] = 100_000
    spec["trainer"]["template"] = template(KEEPS)
    # With a shared process namespace, a process can be killed from within the pod.
    spec["coordinator"]["template"] = template(ROLLS if moves else KEEPS, shareProcessNamespace=True)
    spec["rollout"] |= {"machines": machines, "template": template(ROLLS)}
    for environment in spec.get("environments", []):
        environment["template"]["spec"]["nodeSelector"] = {ROLLS: "true"}
    spec["runPolicy"] = {"backoffLimit": 1000}
    spec["failurePolicy"] = {
        "maxReplacementsPerMachine": 1000,
        "backoff": {"initialSeconds": 1, "maxSeconds": 2, "resetAfterSeconds": 5},
        "nodeFailure": {"avoidFailedNodesSeconds": 20},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": JOB},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CODE.stem}, "data": {CODE.name: _code()}}
    return [claim, *([code] if agents else []), job]


def _code() -> str:
    """Return the example's tool."""
    return CODE.read_text(encoding="utf-8")
