"""Job commands: `rljob list`, `submit`, `events`, `suspend` and `resume`, with the user's own rights as kubectl has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from rljob_api import load
from rljob_api.admission.loading import parse
from rljob_api.constants import KIND
from rljob_api.parsing import yaml_text
from rljob_runtime.cli.assignments import assign_all
from rljob_runtime.cli.cluster import NO_JOB, Cluster, NoAnswer
from rljob_runtime.cli.files import Unusable, fail, mistakes_of, read_text
from rljob_runtime.cli.jobs.tables import Row, aligned, event_rows, job_rows

T = TypeVar("T")
Name = Annotated[str, typer.Argument(help="The RLJob's name.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the job. Default: the context's.")
]


def list_jobs(
    namespace: Namespace = None,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")] = False,
) -> None:
    """List the RLJobs of a cluster."""
    from rljob_kube.resources import RLJOB

    def read(cluster: Cluster) -> list[dict[str, Any]]:
        place = None if everywhere else namespace or cluster.namespace
        return cluster.ask(f"rljobs in {place or 'all namespaces'}", lambda kube: kube.list(RLJOB, place))

    jobs = in_cluster(read)
    if not jobs:
        print("no RLJobs" if everywhere else "no RLJobs in this namespace; -A lists those of all namespaces")
        return
    _print(job_rows(jobs, datetime.now(UTC), everywhere))


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An RLJob manifest.")],
    namespace: Namespace = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Set a field, for example spec.rounds=3. Repeatable."),
    ] = None,
) -> None:
    """Check an RLJob here, and apply it to a cluster."""
    from rljob_kube.resources import RLJOB

    try:
        with mistakes_of(file):
            text = read_text(file)
            document = assign_all(parse(text), assignments or ())
            job = load(document)
    except Unusable as error:
        raise fail(str(error)) from None
    if others := _other_kinds(text):
        listed = ", ".join(others)
        print(f"{file}: holds {listed} too, which is not applied; use kubectl apply -f {file}", flush=True)

    def apply(cluster: Cluster) -> str:
        place = namespace or document["metadata"].get("namespace") or cluster.namespace
        manifest = {**document, "metadata": {**document["metadata"], "namespace": place}}
        manifest.pop("status", None)
        cluster.ask(f"rljob/{job.name} in {place}", lambda kube: kube.apply(RLJOB, manifest))
        return str(place)

    place = in_cluster(apply)
    print(f"rljob/{job.name} applied in {place}; watch it with: rljob status {job.name} -n {place} -w")


def events(name: Name, namespace: Namespace = None) -> None:
    """Show the events of an RLJob and of its pods, the newest last."""
    from rljob_kube.resources import EVENT

    def read(cluster: Cluster) -> list[dict[str, Any]]:
        place = namespace or cluster.namespace
        cluster.rljob(place, name)  # tells a wrong name
        return cluster.ask(f"events in {place}", lambda kube: kube.list(EVENT, place))

    rows = event_rows(in_cluster(read), name, datetime.now(UTC))
    if len(rows) == 1:
        print("no events; the API server keeps them for an hour")
        return
    _print(rows)


def suspend(name: Name, namespace: Namespace = None) -> None:
    """Suspend an RLJob: its pods are deleted, its state stays."""
    _set_suspend(name, namespace, True)


def resume(name: Name, namespace: Namespace = None) -> None:
    """Resume a suspended RLJob from its store and its last checkpoint."""
    _set_suspend(name, namespace, False)


def _set_suspend(name: str, namespace: str | None, value: bool) -> None:
    from rljob_kube.resources import RLJOB

    def merge(cluster: Cluster) -> str:
        place = namespace or cluster.namespace
        patch = {"spec": {"suspend": value}}
        cluster.ask(f"rljob/{name} in {place}", lambda kube: kube.merge(RLJOB, place, name, patch), NO_JOB)
        return place

    place = in_cluster(merge)
    print(f"rljob/{name} in {place} {'is being suspended' if value else 'resumes'}")


def in_cluster(work: Callable[[Cluster], T]) -> T:
    """Return the result of `work` in the cluster of the kubeconfig; end with one line where that fails."""
    try:
        return work(Cluster())
    except Unusable as error:
        raise fail(str(error)) from None
    except NoAnswer as error:
        raise fail(str(error), code=1) from None


def _other_kinds(text: str) -> list[str]:
    found = [one.get("kind") for one in yaml_text.documents(text) if isinstance(one, dict)]
    return sorted({str(kind) for kind in found if kind != KIND})


def _print(rows: Sequence[Row]) -> None:
    print("\n".join(aligned(rows)))
