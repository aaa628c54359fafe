"""The demo: a real cluster, the operator installed by Helm, an RLJob applied with kubectl and followed to its end.

    hack/demo EXAMPLE      CLUSTER=local (default), kind, or own (KUBECONFIG names it)

Ends with exit status 0 and, as its last line, `demo: Complete rounds=… reward_first=… reward_last=… weight_version=…`,
where the rewards are the means of the first and of the last fifth of the rounds. Under an asynchronous job the local
cluster loses a node in the middle; the line then goes on `faults=1 lost=… duplicated=… recovered_seconds=…`
(:mod:`demo_faults`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # run as a script, this folder alone is there

from hack import demo_faults  # noqa: E402

CLUSTER = [sys.executable, str(ROOT / "hack/cluster/cluster")]
SYSTEM_NAMESPACE = "rljob-system"
NAMESPACE = "rljob-demo"
JOB_MINUTES = 30
"""Bound on the job itself, once its pods may start: the demo takes at most 12 on two quiet cores."""


def main(example: str) -> int:
    manifest = ROOT / "examples" / f"{example}.yaml"
    if not manifest.is_file():
        known = ", ".join(sorted(p.stem for p in manifest.parent.glob("*.yaml")))
        print(f"demo: no example {example!r}; there are: {known}")
        return 2
    started = time.monotonic()
    cluster()
    local = demo_faults.local_cluster(os.environ.get("KUBECONFIG", "")) if is_asynchronous(manifest) else None
    if local is not None:
        # Soft: the operator, the coordinator and the trainer leave a node to rollout machines.
        kubectl("taint", "node", f"node-{local.nodes}", demo_faults.TAINT, "--overwrite", namespace=None)
    install_operator()
    name, rounds = apply(manifest)
    fault = demo_faults.PowerOff(local, NAMESPACE, name) if local is not None else None
    outcome = follow(name, rounds, started)
    if fault is not None:
        fault.finish()
    print(kubectl("describe", "rljob", name), flush=True)
    if outcome != "Complete":
        tail = kubectl("logs", "-l", f"rljob.dev/job={name},rljob.dev/role=coordinator", "--tail=40", check=False)
        print(tail, f"demo: {outcome}", sep="\n")
        return 1
    if local is None or fault is None:
        print(summary(name))
        return 0
    return tell_fault(name, fault, local)


def is_asynchronous(manifest: Path) -> bool:
    """Whether the example's job is one that a lost node holds up nowhere."""
    documents = yaml.safe_load_all(manifest.read_text(encoding="utf-8"))
    return any(d and d["kind"] == "RLJob" and d["spec"].get("mode") == "Asynchronous" for d in documents)


def tell_fault(name: str, fault: demo_faults.PowerOff, local: demo_faults.settings.Cluster) -> int:
    """The loss of the node and what the history says; 0 when it was made good and nothing is missing."""
    job = json.loads(kubectl("get", "rljob", name, "-o", "json"))
    claim = job["spec"]["checkpoint"]["volumeClaimName"]
    volume = kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}").strip()
    verdict = demo_faults.history(local, volume)
    for finding in verdict.get("findings", [])[:20]:
        print(f"demo: {finding['rule']}: {finding['key']}: {finding['what']}")
    for trouble in filter(None, (fault.trouble, verdict.get("error"))):
        print(f"demo: {trouble}")
    timeline = fault.timeline
    if timeline is not None:
        print(timeline.table(fault.starts))
    recovered = timeline.moments.get("generating") if timeline is not None else None
    print(demo_faults.last_line(job["status"]["runtime"], int(timeline is not None), verdict, recovered))
    return 0 if recovered is not None and verdict.get("findings") == [] else 1


def cluster(nodes: int = 3) -> None:
    """Have a cluster, and KUBECONFIG point to it. `nodes`: of the local one."""
    kind = os.environ.get("CLUSTER", "local")
    if kind != "own":
        run(*CLUSTER, "up", *(["--kind"] if kind == "kind" else ["--nodes", str(nodes), "--node", "real"]), quiet=False)
        os.environ["KUBECONFIG"] = run(*CLUSTER, "kubeconfig").strip()
    os.environ["PATH"] = run(*CLUSTER, "tools").strip() + os.pathsep + os.environ["PATH"]


def install_operator(*settings: str) -> None:
    """The chart, with the images that the cluster has, and more `settings` for Helm."""
    say("installing the operator")
    run(
        *("helm", "upgrade", "--install", "rljob", str(ROOT / "charts/rljob")),
        *("--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "3m"),
        *image_values(),
        *settings,
    )


def image_values() -> list[str]:
    """Images of the local clusters unless the user names others by RLJOB_OPERATOR_IMAGE and RLJOB_RUNTIME_IMAGE."""
    operator = os.environ.get("RLJOB_OPERATOR_IMAGE", "rljob.local/operator:dev")
    runtime = os.environ.get("RLJOB_RUNTIME_IMAGE", "rljob.local/runtime:dev")
    # The local image runs this checkout, whatever its state: a new pod takes up what was edited since the last.
    edited = ["--set-string", f"podAnnotations.installed={time.time_ns()}"]
    return ["--set", f"image={operator}", "--set", f"runtimeImage={runtime}", *edited]


def apply(manifest: Path) -> tuple[str, int]:
    """A fresh namespace with the example in it; its name and number of rounds."""
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait", namespace=None)
    kubectl("create", "namespace", NAMESPACE, namespace=None)
    documents = [d for d in yaml.safe_load_all(manifest.read_text(encoding="utf-8")) if d]
    job = next(d for d in documents if d["kind"] == "RLJob")
    say(f"kubectl apply -f {manifest.relative_to(ROOT)}")
    kubectl("apply", "-f", str(manifest))
    return job["metadata"]["name"], int(job["spec"]["rounds"])


def follow(name: str, rounds: int, started: float) -> str:
    """Print each change until the job ends; 'Complete', or why not."""
    deadline = time.monotonic() + 60 * JOB_MINUTES
    last = ""
    while time.monotonic() < deadline:
        status: dict[str, Any] = json.loads(kubectl("get", "rljob", name, "-o", "json")).get("status") or {}
        line = describe(status, rounds)
        if line != last:
            print(f"[{time.monotonic() - started:5.0f} s] {line}", flush=True)
            last = line
        for condition in status.get("conditions", []):
            if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
                return "Complete" if condition["type"] == "Complete" else f"Failed: {condition.get('message')}"
        time.sleep(1.0)
    return f"not complete after {JOB_MINUTES} minutes"


def describe(status: dict[str, Any], rounds: int) -> str:
    """One line of what is going on."""
    runtime = status.get("runtime") or {}
    rollout = status.get("rollout") or {}
    reward = runtime.get("reward")
    return (
        f"{status.get('phase', 'Pending'):<10} machines {rollout.get('ready', 0)}/{rollout.get('desired', '?')}"
        f"  round {runtime.get('round', 0)}/{rounds} {runtime.get('stage', '')}"
        f"  weights v{runtime.get('weightVersion', '-')}" + ("" if reward is None else f"  reward {reward:.3f}")
    )


def summary(name: str) -> str:
    """The last line, as the coordinator counted."""
    runtime = json.loads(kubectl("get", "rljob", name, "-o", "json"))["status"]["runtime"]
    return (
        f"demo: Complete rounds={runtime['round']} reward_first={runtime['rewardFirst']:.3f} "
        f"reward_last={runtime['rewardLast']:.3f} weight_version={runtime['weightVersion']}"
    )


def kubectl(*args: str, namespace: str | None = NAMESPACE, check: bool = True) -> str:
    return run("kubectl", *(["-n", namespace] if namespace else []), *args, check=check)


def run(*command: str, check: bool = True, quiet: bool = True) -> str:
    """Output of a command; a failing one ends the demo with what it said."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE if quiet else None, stderr=subprocess.PIPE, text=True, check=False
    )
    if check and done.returncode != 0:
        sys.exit(f"demo: {' '.join(command[:3])} … failed:\n{done.stdout or ''}{done.stderr}")
    return done.stdout or ""


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "addition-smollm2"))
