"""`rljob status NAME [-w]`: a job in a cluster, drawn as `rljob run` draws a local one."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from rljob_api import constants
from rljob_api.status import RLJobStatus
from rljob_runtime.cli.view import job_view

_POLL_SECONDS = 2.0


def status(
    name: Annotated[str, typer.Argument(help="The RLJob's name.")],
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Default: the context's own.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay, and redraw until the job ends.")] = False,
) -> None:
    """Show an RLJob that runs in a cluster."""
    from kubernetes import client, config  # half a second to import, needed here only

    console = Console()
    try:
        config.load_kube_config()
    except config.ConfigException as error:
        console.print(f"[red]no cluster[/red]: {error}")
        raise typer.Exit(2) from None
    if namespace is None:
        namespace = config.list_kube_config_contexts()[1]["context"].get("namespace", "default")
    api = client.CustomObjectsApi()

    def read() -> dict[str, Any]:
        try:
            found: Any = api.get_namespaced_custom_object(
                constants.GROUP, constants.VERSION, namespace, constants.PLURAL, name, _request_timeout=10
            )
        except client.ApiException as error:
            hint = "is the CRD installed, and the name right?" if error.status == 404 else str(error.reason)
            console.print(f"[red]rljob/{name} in {namespace}[/red]: {error.status}: {hint}")
            raise typer.Exit(1) from None
        return found

    found = read()
    if not watch:
        console.print(_draw(name, found))
        return
    with Live(_draw(name, found), console=console, auto_refresh=False) as live:
        while not _ended(found):
            time.sleep(_POLL_SECONDS)
            found = read()
            live.update(_draw(name, found), refresh=True)


def _draw(name: str, found: dict[str, Any]) -> Any:
    return job_view(name, RLJobStatus.model_validate(found.get("status") or {}), int(found["spec"]["rounds"]))


def _ended(found: dict[str, Any]) -> bool:
    conditions = (found.get("status") or {}).get("conditions", [])
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)
