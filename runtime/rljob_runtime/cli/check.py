"""`rljob check FOLDER|state.db`: proves from a job's store that nothing was lost and nothing trained on twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rljob_runtime.audit import AuditResult, NoHistory, audit
from rljob_runtime.cli.files import fail

_SHOWN = 50


def check(
    path: Annotated[Path, typer.Argument(help="The job's folder, or its state.db.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read a job's history from a copy of its store and check that every prompt is accounted for.

    Exit status: 0 if all checks hold, 1 if one does not, 2 if there is no history.
    """
    try:
        verdict = audit(path)
    except NoHistory as error:
        raise fail(str(error)) from None
    if as_json:
        typer.echo(json.dumps(verdict.to_dict()))
    else:
        _print(verdict)
    if verdict.findings:
        raise typer.Exit(1)


def _print(verdict: AuditResult) -> None:
    for finding in verdict.findings[:_SHOWN]:
        typer.echo(str(finding))
    if len(verdict.findings) > _SHOWN:
        typer.echo(f"and {len(verdict.findings) - _SHOWN} more; --json has them all")
    where = ", ".join(
        f"{verdict.prompts.get(outcome, 0)} {outcome}" for outcome in ("trained", "filtered", "requeued", "open")
    )
    typer.echo(
        f"check: updates {verdict.began + 1} to {verdict.ended}: {sum(verdict.prompts.values())} prompts drawn "
        f"{verdict.draws} times ({where}); trained on {verdict.trajectories} responses of {verdict.versions} versions, "
        f"{verdict.tokens} tokens; lost {verdict.lost}, duplicated {verdict.duplicated}, "
        f"broken {len(verdict.findings)}"
    )
    if (episodes := verdict.episodes) is not None:
        attempts = ", ".join(
            f"{episodes.attempts.get(state, 0)} {state}" for state in ("completed", "truncated", "aborted", "open")
        )
        typer.echo(
            f"check: episodes: {sum(episodes.attempts.values())} attempts ({attempts}); {episodes.proved} trained "
            f"responses of {episodes.turns} turns and {episodes.tokens} tokens are as the engines emitted them; "
            f"tokens of another origin {episodes.unproved}"
        )
    if verdict.kept > verdict.began:
        typer.echo(
            f"check: updates {verdict.began + 1} to {verdict.kept} are pruned (spec.store.keepRounds): their prompts "
            "are counted against the cursor; each prompt and response since then is proved one by one"
        )
