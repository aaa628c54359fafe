"""`rljob status NAME [-w]`: a job in a cluster, drawn as `rljob run` draws a local one."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.live import Live

from rljob_api import InvalidSpec
from rljob_api.admission.loading import load_status
from rljob_runtime.cli.cluster import Cluster, NoAnswer
from rljob_runtime.cli.files import Unusable, fail
from rljob_runtime.cli.screen import screen
from rljob_runtime.cli.views.status import job_view

_POLL_SECONDS = 2.0


def status(
    name: Annotated[str, typer.Argument(help="The RLJob's name.")],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the job. Default: the context's.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Redraw until the job ends.")] = False,
) -> None:
    """Show an RLJob that runs in a cluster."""
    try:
        cluster = Cluster()
        _show(cluster, namespace or cluster.namespace, name, watch)
    except Unusable as error:
        raise fail(str(error)) from None
    except (NoAnswer, InvalidSpec) as error:
        raise fail(str(error), code=1) from None


def _show(cluster: Cluster, namespace: str, name: str, watch: bool) -> None:
    console = screen()
    found = cluster.rljob(namespace, name)
    if not watch:
        console.print(_draw(name, found))
        return
    with Live(_draw(name, found), console=console, auto_refresh=False) as live:
        while not _ended(found):
            time.sleep(_POLL_SECONDS)
            found = cluster.rljob(namespace, name)
            live.update(_draw(name, found), refresh=True)


def _draw(name: str, found: dict[str, Any]) -> Any:
    return job_view(name, load_status(found.get("status") or {}), int(found["spec"]["rounds"]))


def _ended(found: dict[str, Any]) -> bool:
    conditions = (found.get("status") or {}).get("conditions", [])
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)
