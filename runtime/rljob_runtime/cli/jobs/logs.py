"""`rljob logs NAME`: the log of the coordinator, or of another pod of the job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_api.constants import LABEL_JOB, LABEL_MACHINE, LABEL_ROLE
from rljob_runtime.cli.cluster import Cluster, NoAnswer
from rljob_runtime.cli.jobs.commands import Name, Namespace, in_cluster
from rljob_runtime.cli.jobs.tables import newest_pods

if TYPE_CHECKING:
    from rljob_kube.client import KubeClient

FOLLOW_SECONDS = 86_400
"""Longest time that a log is followed."""
READ_SECONDS = 60


class Role(StrEnum):
    """Roles of pods."""

    COORDINATOR = "coordinator"
    TRAINER = "trainer"
    ROLLOUT = "rollout"


def logs(
    name: Name,
    namespace: Namespace = None,
    role: Annotated[Role, typer.Option(help="Role of the pod.")] = Role.COORDINATOR,
    machine: Annotated[str | None, typer.Option(help="Machine, for example rollout-1. Default: the first.")] = None,
    container: Annotated[str, typer.Option("--container", "-c", help="Container of the pod.")] = "main",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the container ends.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Number of last lines. Default: all.")] = None,
) -> None:
    """Print the log of a pod of an RLJob; of the coordinator unless told otherwise."""
    wanted = _Wanted(role, machine, container, follow, tail)
    in_cluster(lambda cluster: _print_log(cluster, namespace or cluster.namespace, name, wanted))


@dataclass(frozen=True)
class _Wanted:
    """The log that the user wants."""

    role: Role
    machine: str | None
    container: str
    follow: bool
    tail: int | None

    @property
    def pods_role(self) -> str:
        """Role of the pods: a machine's name begins with its role."""
        return self.machine.rpartition("-")[0] if self.machine is not None else self.role.value

    @property
    def params(self) -> dict[str, str]:
        """Parameters of the request."""
        params = {"container": self.container, "follow": str(self.follow).lower()}
        return params if self.tail is None else {**params, "tailLines": str(self.tail)}


def _print_log(cluster: Cluster, namespace: str, name: str, wanted: _Wanted) -> None:
    from rljob_kube.resources import POD

    role = wanted.pods_role
    labels = f"{LABEL_JOB}={name},{LABEL_ROLE}={role}"
    pods = newest_pods(cluster.ask(f"pods in {namespace}", lambda kube: kube.list(POD, namespace, labels=labels)))
    pod = next((pod for pod in pods if wanted.machine in (None, _machine(pod))), None)
    if pod is None:
        cluster.rljob(namespace, name)  # tells a wrong name
        there = ", ".join(_machine(one) for one in pods) or "none yet"
        raise NoAnswer(f"rljob/{name} in {namespace}: has no pod of {wanted.machine or role}; its {role} pods: {there}")
    path = POD.path(namespace, pod["metadata"]["name"], "log")

    async def stream(kube: KubeClient) -> None:
        async for line in kube.lines(path, wanted.params, FOLLOW_SECONDS if wanted.follow else READ_SECONDS):
            print(line, flush=wanted.follow)

    cluster.ask(f"pod/{pod['metadata']['name']} in {namespace}", stream)


def _machine(pod: Any) -> str:
    return str((pod["metadata"].get("labels") or {}).get(LABEL_MACHINE) or pod["metadata"]["name"])
