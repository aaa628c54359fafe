"""Chaos job: the job of a chaos campaign."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.parsing import yaml_text

ROOT = Path(__file__).resolve().parents[2]
JOB = "chaos"
KEEPS, ROLLS = "rljob-chaos-keeps", "rljob-chaos-rolls"
"""Labels of the node of coordinator and trainer, and of the nodes of rollout machines."""


CODE = ROOT / "examples/calculator.py"
REWARD = ROOT / "hack/chaos/in_pods/even_results.py"
PROGRAM = ROOT / "hack/chaos/in_pods/calling_program.py"
ALTERNATE = ROOT / "hack/chaos/in_pods/alternate.py"


def manifest(
    mode: str,
    machines: int,
    moves: bool = False,
    agents: bool = False,
    turns: int | None = None,
    switches: bool = False,
    programs: bool = False,
) -> list[dict[str, Any]]:
    """Return the smallest example, that of `agents`, or that of layout `switches`, which then happen in each round.

    It has `machines` rollout machines and unlimited rounds.

    Coordinator and trainer have their own node, so that every other node may be lost. With `moves`, the coordinator is
    on one of those and may lose it. Runners are on nodes that may be lost. `turns`: of each episode of agents; absent
    for those of the example. `programs`: an episode with so many turns is a program.
    """
    example = "calculator-agent" if agents else "adaptive-tp" if switches else "minimal"
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
        # A runner can be stopped from within its pod, where it is not the first process then.
        environment["template"]["spec"] |= {"nodeSelector": {ROLLS: "true"}, "shareProcessNamespace": True}
    code = [_config_map(CODE.stem, {file.name: file for file in (CODE, REWARD, PROGRAM)})] if agents else []
    if switches:
        code = [_switching(spec)]
    spec["runPolicy"] = {"backoffLimit": 1000}
    spec["failurePolicy"] = {
        "maxReplacementsPerMachine": 1000,
        "backoff": {"initialSeconds": 1, "maxSeconds": 2, "resetAfterSeconds": 5},
        "nodeFailure": {"avoidFailedNodesSeconds": 20},
    }
    if turns is not None:
        _long_episodes(spec, turns)
        if programs:
            _by_programs(spec, turns)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": JOB},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    return [claim, *code, job]


EPISODES_PER_UPDATE = 4
"""Of a job of long episodes. A fault is followed over some updates, so their size decides how long it takes."""


LEARNING_RATE = 1e-6
"""Of a job of long episodes. Its weights change, but hundreds of updates must not teach the toy to answer."""


def _long_episodes(spec: dict[str, Any], turns: int) -> None:
    """Make a job of episodes that call the calculator in each of `turns` turns.

    Groups are small, and many are in flight: the episodes of a lost runner wait for half a minute, and their groups
    with them. Each turn may have the newest weights: a version that is lost with its replica would take the tokens of
    its groups along. All updates stay in the store, because all are audited.
    """
    prompts, responses = EPISODES_PER_UPDATE // 2, 2
    spec["model"]["source"] = "package://rljob/toy-caller"
    spec["data"]["maxResponseTokens"] = 1024
    spec["algorithm"] |= {"promptsPerRound": prompts, "responsesPerPrompt": responses, "learningRate": LEARNING_RATE}
    spec["experience"] = {"maxPrompts": 8 * prompts}
    spec["episode"] = {"versions": "Mixed"}
    spec["store"] = {"keepRounds": 1_000_000}
    spec["checkpoint"]["everyRounds"] = 5
    del spec["rewards"]
    (environment,) = spec["environments"]
    environment |= {"maxTurns": turns, "timeoutSeconds": 600, "runners": 3, "state": "Stateless"}
    environment["reward"] = f"{REWARD.name}:score"


def _by_programs(spec: dict[str, Any], turns: int) -> None:
    """Let a program play each episode. It does the calculations itself, and runs again after the loss of its runner."""
    (environment,) = spec["environments"]
    del environment["tools"], environment["state"]
    environment |= {"kind": "Agent", "command": ["python", PROGRAM.name, str(turns)]}


def _switching(spec: dict[str, Any]) -> dict[str, Any]:
    """Let machines switch in each round and move KV; return the code that the coordinator's container mounts.

    At this temperature the toy seldom ends its responses, so that a switch finds full blocks of them."""
    spec["algorithm"]["temperature"] = 10
    spec["data"]["maxResponseTokens"] = 200
    spec["adaptiveTensorParallel"]["state"] = "Migrate"
    pod = spec["coordinator"]["template"]["spec"]
    mount = {"name": ALTERNATE.stem, "mountPath": "/alternate"}
    (main,) = pod["containers"]
    env = [{"name": "PYTHONPATH", "value": mount["mountPath"]}]
    pod["containers"] = [main | {"env": env, "volumeMounts": [mount]}]
    pod["volumes"] = [{"name": ALTERNATE.stem, "configMap": {"name": ALTERNATE.stem}}]
    return _config_map(ALTERNATE.stem, {"sitecustomize.py": ALTERNATE})


def _config_map(name: str, files: Mapping[str, Path]) -> dict[str, Any]:
    """Return a ConfigMap that has these files by their names there."""
    data = {there: file.read_text(encoding="utf-8") for there, file in files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
