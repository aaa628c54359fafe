"""Chaos job: the job of a chaos campaign."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.parsing import yaml_text

from . import tool_server

ROOT = Path(__file__).resolve().parents[2]
JOB = "chaos"
KEEPS, ROLLS = "rljob-chaos-keeps", "rljob-chaos-rolls"
"""Labels of the node of coordinator and trainer, and of the nodes of rollout machines."""


CODE = ROOT / "examples/calculator.py"
REWARD = ROOT / "hack/chaos/in_pods/even_results.py"
PROGRAM = ROOT / "hack/chaos/in_pods/calling_program.py"
PATCHING = ROOT / "hack/chaos/in_pods/patching.py"
ALTERNATE = ROOT / "hack/chaos/in_pods/alternate.py"
FAILING = ROOT / "hack/chaos/in_pods/failing_engines.py"
TOOL_SERVER = ROOT / "hack/chaos/in_pods" / tool_server.PROGRAM

SHARED_MEMORY = "64Mi"
"""Size of the shared memory of a machine that switches, so that it can be filled. Ray keeps its objects elsewhere then,
because it wants 100 MB."""


def manifest(
    mode: str,
    machines: int,
    moves: bool = False,
    agents: bool = False,
    turns: int | None = None,
    switches: bool = False,
    programs: bool = False,
    stateful: bool = False,
) -> list[dict[str, Any]]:
    """Return the smallest example, that of `agents`, or that of layout `switches`, which then happen in each round.

    It has `machines` rollout machines and unlimited rounds.

    Coordinator and trainer have their own node, so that every other node may be lost. With `moves`, the coordinator is
    on one of those and may lose it. Runners are on nodes that may be lost. `turns`: of each episode of agents; absent
    for those of the example. Their tool is then a server, which can die and hang apart from runners. `programs`: an
    episode with so many turns is a program. `stateful`: one that goes on with another runner executes its calls again.
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
    files = (CODE, REWARD, PROGRAM, TOOL_SERVER)
    code = [_config_map(CODE.stem, {file.name: file for file in files})] if agents else []
    if switches:
        code = [switching(spec)]
    spec["runPolicy"] = {"backoffLimit": 1000}
    spec["failurePolicy"] = {
        "maxReplacementsPerMachine": 1000,
        "backoff": {"initialSeconds": 1, "maxSeconds": 2, "resetAfterSeconds": 5},
        "nodeFailure": {"avoidFailedNodesSeconds": 20},
    }
    if turns is not None:
        _long_episodes(spec, turns)
        (environment,) = spec["environments"]
        environment["state"] = "Stateful" if stateful else "Stateless"
        if programs:
            _by_programs(spec, turns)
    elif agents:
        (environment,) = spec["environments"]
        environment["tools"] = [{"mcp": {"url": tool_server.URL}}]
        code += tool_server.objects(CODE.stem, {KEEPS: "true"})
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
    environment |= {"maxTurns": turns, "timeoutSeconds": 600, "runners": 3}
    environment["reward"] = f"{REWARD.name}:score"


def _by_programs(spec: dict[str, Any], turns: int) -> None:
    """Let a program play each episode. It does the calculations itself, and runs again after the loss of its runner."""
    (environment,) = spec["environments"]
    del environment["tools"], environment["state"]
    environment |= {"kind": "Agent", "command": ["python", PROGRAM.name, str(turns)]}


def switching(spec: dict[str, Any]) -> dict[str, Any]:
    """Let machines switch in each round and move KV; return the code that coordinator and machines mount.

    At this temperature the toy seldom ends its responses, so that a switch finds full blocks of them."""
    spec["algorithm"]["temperature"] = 10
    spec["data"]["maxResponseTokens"] = 200
    spec["adaptiveTensorParallel"]["state"] = "Migrate"
    files = {file.name: file for file in (ALTERNATE, FAILING)}
    code = _config_map("patches", files | {"sitecustomize.py": PATCHING})
    small = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}
    _mount(spec["coordinator"], code["metadata"]["name"])
    _mount(spec["rollout"], code["metadata"]["name"], (small, "/dev/shm"))
    return code


def _mount(role: dict[str, Any], code: str, *volumes: tuple[dict[str, Any], str]) -> None:
    """Put a ConfigMap of modules on the Python path of a role's pods, and mount these volumes there.

    Roles may share their template, so it is replaced."""
    pod = role["template"]["spec"]
    (main,) = pod["containers"]
    mounted = [({"name": code, "configMap": {"name": code}}, f"/{code}"), *volumes]
    mounts = [{"name": volume["name"], "mountPath": path} for volume, path in mounted]
    main = main | {
        "env": [{"name": "PYTHONPATH", "value": f"/{code}"}],
        "volumeMounts": [*main.get("volumeMounts", []), *mounts],
    }
    own = {"containers": [main], "volumes": [*pod.get("volumes", []), *(volume for volume, _ in mounted)]}
    role["template"] = role["template"] | {"spec": pod | own}


def _config_map(name: str, files: Mapping[str, Path]) -> dict[str, Any]:
    """Return a ConfigMap that has these files by their names there."""
    data = {there: file.read_text(encoding="utf-8") for there, file in files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
