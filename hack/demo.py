"""Demo: a real cluster, the operator installed by Helm, an RLJob applied with kubectl and followed to its end.

    hack/demo EXAMPLE      CLUSTER=local, kind or own; empty: that of KUBECONFIG, else what this machine can run
                           KUBERNETES=1.34 … 1.37: the minor of a cluster that is created here

Ends with exit status 0 and, as its last line, `demo: Complete rounds=… reward_first=… reward_last=… weight_version=…`.
The rewards are the means of the first and of the last fifth of the rounds. Under an asynchronous or an agents' job with
a checkpoint volume the local cluster loses a node during the run; the line then continues with `faults=1 lost=…
duplicated=… recovered_seconds=…` (:mod:`demo_faults`). For agents `episodes=… turns=… reencoded=… resumed=…` comes
before `lost`. An example that the demo cannot run is refused with status 2 before anything starts. For an example in a
queue the local cluster and kind get Kueue; on a cluster of the user's own it must be there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # a script only has its own folder on the path

from hack import demo_faults, demo_plan  # noqa: E402
from hack.local_cluster import settings  # noqa: E402
from hack.local_cluster.private import kueue  # noqa: E402
from hack.local_cluster.programs import recipe  # noqa: E402
from rljob_api import RLJob, load  # noqa: E402

EXAMPLES = ROOT / "examples"
CLUSTER = [sys.executable, str(ROOT / "hack/local_cluster/cluster")]
SYSTEM_NAMESPACE = "rljob-system"
NAMESPACE = "rljob-demo"
JOB_MINUTES = 30
"""Limit of the job, once its pods may start: the demo takes at most 12 on two idle cores."""


def main(example: str) -> int:
    try:
        choice = choose()
        minor = recipe.release().minor
    except (ValueError, settings.ClusterError) as error:
        print(f"demo: {error}")
        return 2
    say(demo_plan.describe(choice, minor))
    if trouble := refusal(example, choice.cluster):
        say(trouble)
        return 2
    manifest = EXAMPLES / f"{example}.yaml"
    job = read(manifest)
    started = time.monotonic()
    cluster()
    queue = demo_plan.queue_of(job)
    if queue is not None and choice.cluster == "own" and not serves_kueue():
        say(demo_plan.no_kueue(queue))
        return 2
    local = target(job)
    if local is not None:
        # A soft taint: operator, coordinator and trainer leave this node to rollout machines and runners.
        kubectl("taint", "node", f"node-{local.nodes}", demo_faults.TAINT, "--overwrite", namespace=None)
    if queue is not None and choice.cluster != "own":
        install_kueue()
    install_operator(*([] if queue is None else ["--set", "kueue.enabled=true"]))
    apply(manifest, demo_faults.TAINT if local is not None else None, queue)
    fault = demo_faults.PowerOff(local, NAMESPACE, job) if local is not None else None
    outcome = follow(job.name, job.spec.rounds, started)
    if fault is not None:
        fault.finish()
    print(kubectl("describe", "rljob", job.name), flush=True)
    if outcome != "Complete":
        tail = kubectl("logs", "-l", f"rljob.dev/job={job.name},rljob.dev/role=coordinator", "--tail=40", check=False)
        print(tail, f"demo: {outcome}", sep="\n")
        return 1
    if local is None or fault is None:
        print(summary(job.name))
        return 0
    return tell_fault(job, fault, local)


def choose() -> demo_plan.Choice:
    """Choose the cluster for this machine. Raises ValueError."""
    return demo_plan.choose(os.environ, os.geteuid(), sys.platform)


def read(manifest: Path) -> RLJob:
    """Return the manifest's job, validated and with its defaults."""
    return load(manifest.read_text(encoding="utf-8"))


def refusal(example: str, cluster_kind: str) -> str | None:
    """Return why this example cannot run on such a cluster, with those that can; None if it can."""
    examples = {path.stem: demo_plan.needs(read(path), cluster_kind) for path in sorted(EXAMPLES.glob("*.yaml"))}
    wanted = examples.get(example)
    if wanted == []:
        return None
    playable = f"the demo runs {', '.join(name for name, lacking in examples.items() if not lacking)}"
    if wanted is None:
        return f"no example {example!r}; {playable}"
    return f"{example} needs {' and '.join(wanted)}: examples/{example}.yaml says how to run it; {playable}"


def target(job: RLJob) -> settings.Cluster | None:
    """Return the local cluster if it will lose a node under this job; print why not, if that was to be expected."""
    if not demo_plan.loses_a_node(job):
        return None
    local = demo_faults.local_cluster(os.environ.get("KUBECONFIG", ""))
    if why := demo_plan.no_power_off(job, local is not None):
        say(f"no node is switched off: {why}")
        return None
    return local


def tell_fault(job: RLJob, fault: demo_faults.PowerOff, local: settings.Cluster) -> int:
    """Print the node's loss and the audit; return 0 if the job recovered and nothing is missing."""
    claim = job.spec.checkpoint.volume_claim_name
    volume = kubectl("get", "pvc", str(claim), "-o", "jsonpath={.spec.volumeName}").strip()
    verdict = demo_faults.history(local, volume)
    for finding in verdict.get("findings", [])[:20]:
        print(f"demo: {finding['rule']}: {finding['key']}: {finding['what']}")
    for trouble in filter(None, (fault.trouble, verdict.get("error"))):
        print(f"demo: {trouble}")
    timeline = fault.timeline
    if timeline is not None:
        print(timeline.table(fault.starts))
    recovered = timeline.moments.get("generating") if timeline is not None else None
    runtime = json.loads(kubectl("get", "rljob", job.name, "-o", "json"))["status"]["runtime"]
    resumed = demo_faults.interrupted(local, volume) if job.spec.environments else 0
    if job.spec.environments and not resumed:
        say("warning: no episode was interrupted, so that nothing is shown of one that loses its runner")
    print(demo_faults.last_line(runtime, int(timeline is not None), verdict, recovered, resumed))
    return 0 if recovered is not None and verdict.get("findings") == [] else 1


def cluster(nodes: int = 3) -> None:
    """Make sure that there is a cluster and KUBECONFIG names it. `nodes`: of the local one."""
    kind = choose().cluster
    if kind != "own":
        run(*CLUSTER, "up", *(["--kind"] if kind == "kind" else ["--nodes", str(nodes)]), quiet=False)
        os.environ["KUBECONFIG"] = run(*CLUSTER, "kubeconfig").strip()
    os.environ["PATH"] = run(*CLUSTER, "tools").strip() + os.pathsep + os.environ["PATH"]


def serves_kueue() -> bool:
    """Return whether the cluster has Kueue, of a version that the operator knows."""
    return demo_plan.KUEUE in kubectl("api-versions", namespace=None).split()


def install_kueue() -> None:
    """Install Kueue by its own chart, of the source that its image is built from."""
    say("installing Kueue, built here once")
    try:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder, "kueue.tar")
            image = kueue.image(archive)
            run(*CLUSTER, "load-image", str(archive))
        chart = kueue.source() / "charts/kueue"
    except settings.ClusterError as error:
        sys.exit(f"demo: Kueue was not built: {error}")
    defaults = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    run(
        *("helm", "upgrade", "--install", "kueue", str(chart), "--namespace", kueue.NAMESPACE, "--create-namespace"),
        *("--wait", "--timeout", "3m", "--values", "-"),
        given=yaml.safe_dump(demo_plan.kueue_values(defaults, image, NAMESPACE)),
    )


def install_operator(*settings: str) -> None:
    """Install the chart with the cluster's images and further Helm `settings`."""
    say("installing the operator")
    run(
        *("helm", "upgrade", "--install", "rljob", str(ROOT / "charts/rljob")),
        *("--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "3m"),
        *image_values(),
        *settings,
    )


def image_values() -> list[str]:
    """Return the images of RLJOB_OPERATOR_IMAGE and RLJOB_RUNTIME_IMAGE, else those of the local clusters."""
    operator = os.environ.get("RLJOB_OPERATOR_IMAGE", settings.OPERATOR_IMAGE)
    runtime = os.environ.get("RLJOB_RUNTIME_IMAGE", settings.RUNTIME_IMAGE)
    # The local image runs this checkout: a new pod has the edits since the last one.
    edited = ["--set-string", f"podAnnotations.installed={time.time_ns()}"]
    return ["--set", f"image={operator}", "--set", f"runtimeImage={runtime}", *edited]


def apply(manifest: Path, tolerated: str | None, queue: str | None) -> None:
    """Create the namespace again, with the example and its `queue` in it. Its rollout machines tolerate that taint."""
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait", "--timeout=5m", namespace=None)
    kubectl("create", "namespace", NAMESPACE, namespace=None)
    if queue is not None:
        make_queue(queue)
    server = json.loads(kubectl("version", "-o", "json", namespace=None))["serverVersion"]["gitVersion"]
    text = manifest.read_text(encoding="utf-8")
    for name in demo_plan.config_maps(yaml.safe_load_all(text)):
        code = code_file(name)
        say(f"kubectl create configmap {name} --from-file={code.relative_to(ROOT)}")
        kubectl("create", "configmap", name, f"--from-file={code}")
    told = f"Kubernetes {server}: kubectl apply -f {manifest.relative_to(ROOT)}"
    say(told if tolerated is None else f"{told}, and its rollout machines tolerate {tolerated}")
    if tolerated is not None:
        text = yaml.safe_dump_all(demo_plan.tolerating(yaml.safe_load_all(text), tolerated))
    kubectl("apply", "-f", "-", given=text)


def make_queue(name: str) -> None:
    """Make the job's queue with its quota, and wait until Kueue admits by it."""
    say(f"making the queue {name}, with a quota of {', '.join(' '.join(one) for one in demo_plan.QUOTA.items())}")
    kubectl("apply", "-f", "-", given=yaml.safe_dump_all(demo_plan.quota(name, NAMESPACE)))
    kubectl("wait", "--for=condition=Active", f"localqueue/{name}", "--timeout=60s")


def code_file(config_map: str) -> Path:
    """Return the file of an example's ConfigMap: they have one name."""
    return EXAMPLES / f"{config_map.replace('-', '_')}.py"


def follow(name: str, rounds: int, started: float) -> str:
    """Print each change until the job ends; return 'Complete', or why it is not."""
    deadline = time.monotonic() + 60 * JOB_MINUTES
    last, stall, stalled_since = "", None, time.monotonic()
    while time.monotonic() < deadline:
        status: dict[str, Any] = json.loads(kubectl("get", "rljob", name, "-o", "json")).get("status") or {}
        line = describe(status, rounds)
        if line != last:
            print(f"[{time.monotonic() - started:5.0f} s] {line}", flush=True)
            last = line
        if (how := demo_plan.ended(status)) is not None:
            return how
        before, stall = stall, demo_plan.stalled(status)
        if stall is None or before is None or stall.patience != before.patience:
            stalled_since = time.monotonic()
        elif time.monotonic() - stalled_since >= stall.patience:
            return stall.why
        time.sleep(1.0)
    return f"not complete after {JOB_MINUTES} minutes"


def describe(status: dict[str, Any], rounds: int) -> str:
    """Return the job's state in one line."""
    runtime = status.get("runtime") or {}
    rollout = status.get("rollout") or {}
    reward = runtime.get("reward")
    return (
        f"{status.get('phase', 'Pending'):<10} machines {rollout.get('ready', 0)}/{rollout.get('desired', '?')}"
        f"  round {runtime.get('round', 0)}/{rounds} {runtime.get('stage', '')}"
        f"  weights v{runtime.get('weightVersion', '-')}" + ("" if reward is None else f"  reward {reward:.3f}")
    )


def summary(name: str) -> str:
    """Return the last line, from the coordinator's report."""
    runtime = json.loads(kubectl("get", "rljob", name, "-o", "json"))["status"]["runtime"]
    return (
        f"demo: Complete rounds={runtime['round']} reward_first={runtime['rewardFirst']:.3f} "
        f"reward_last={runtime['rewardLast']:.3f} weight_version={runtime['weightVersion']}"
    )


def kubectl(*args: str, namespace: str | None = NAMESPACE, check: bool = True, given: str | None = None) -> str:
    return run("kubectl", *(["-n", namespace] if namespace else []), *args, check=check, given=given)


def run(*command: str, check: bool = True, quiet: bool = True, given: str | None = None) -> str:
    """Run a command, with `given` as its input, and return its output; a failure ends the demo with its error."""
    stdout = subprocess.PIPE if quiet else None
    done = subprocess.run(command, input=given, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    if check and done.returncode != 0:
        sys.exit(f"demo: {' '.join(command[:3])} … failed:\n{done.stdout or ''}{done.stderr}")
    return done.stdout or ""


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "addition-smollm2"))
