"""`rljob episodes JOB|FOLDER`: the attempts of a job's episodes, as a table, or in the format ATIF."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from rljob_runtime.audit import NoHistory
from rljob_runtime.cli.cluster import NoAnswer
from rljob_runtime.cli.episodes.atif import atif_documents
from rljob_runtime.cli.episodes.source import EpisodeSource, FolderEpisodes
from rljob_runtime.cli.episodes.stored import StoredAttempt
from rljob_runtime.cli.files import Unusable, fail
from rljob_runtime.cli.screen import say, screen
from rljob_runtime.coordinator.samples.attempt_rows import Wanted
from rljob_runtime.samples import TornFile

NONE_KEPT = (
    "no such episode is kept: the job has no environments, the round has not ended, or it is pruned "
    "(spec.store.keepRounds); without --round and --attempt, all that are kept are shown"
)
PIPED_WIDTH = 160
"""Characters of a line where no terminal bounds it."""


class Format(StrEnum):
    """How episodes are printed."""

    TABLE = "table"
    ATIF = "atif"


def episodes(
    job: Annotated[
        str,
        typer.Argument(
            help="The folder of a run (--workdir), a copy of a job's volume, or the name of an RLJob in a cluster."
        ),
    ],
    form: Annotated[
        Format, typer.Option("--format", help="A table, or ATIF 1.8: a line of JSON for each trajectory.")
    ] = Format.TABLE,
    number: Annotated[int | None, typer.Option("--round", help="Only episodes that this round trained on.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", help="Only this attempt, by its number.")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the job. Default: the context's.")
    ] = None,
) -> None:
    """Show the episodes of a job, while their rounds are kept (spec.store.keepRounds)."""
    try:
        source = _source(job, namespace)
        if form is Format.ATIF:
            _write(source, Wanted(number, attempt))
        else:
            _show(_wanted(source, Wanted(number, attempt, tokens=False)))
    except (NoHistory, Unusable) as error:
        raise fail(str(error)) from None
    except (NoAnswer, TornFile) as error:
        raise fail(str(error), code=1) from None
    except OSError as error:
        raise fail(f"{error.filename or job}: {error.strerror}") from None


def _source(job: str, namespace: str | None) -> EpisodeSource:
    """Return where the episodes are: a path that exists, else a job in the cluster."""
    if namespace is None and Path(job).exists():
        return FolderEpisodes(Path(job))
    if "/" in job:
        raise Unusable(f"{job}: no such folder; the folder of a run (--workdir), or an RLJob's name would be right")
    from rljob_runtime.cli.episodes.pods import PodEpisodes

    try:
        return PodEpisodes.of(job, namespace)
    except (Unusable, NoAnswer) as error:
        if namespace is None:
            raise type(error)(f"{job}: no folder here; in the cluster: {error}") from None
        raise


def _wanted(source: EpisodeSource, wanted: Wanted) -> Iterator[StoredAttempt]:
    return (one for one in source.attempts(wanted) if wanted.step in (None, one.round))


def _write(source: EpisodeSource, wanted: Wanted) -> None:
    """Print the trajectories. Texts of one attempt are looked for in the round that trained on it."""
    found: Iterable[StoredAttempt] = _wanted(source, wanted)
    step = wanted.step
    if wanted.attempt is not None:
        found = list(found)
        step = found[0].round if found else step
    texts, none = source.texts(step), True
    for one in found:
        none = False
        for document in atif_documents(source.name, one, texts.get(one.number)):
            typer.echo(json.dumps(document, ensure_ascii=False))
    if none:
        typer.echo(NONE_KEPT, err=True)


def _show(found: Iterable[StoredAttempt]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("attempt", "episode", "environment", "end", "reward", "round", "turns", "forks", "sampled", "given"):
        table.add_column(column)
    table.add_column("in model")
    table.add_column("outside")
    for one in found:
        counts, times = one.counts, one.times
        table.add_row(
            str(one.number),
            f"{one.prompt}.{one.sample}",
            one.environment,
            ": ".join(part for part in (one.state or "open", one.end) if part),
            "" if one.reward is None else f"{one.reward:.4g}",
            "" if one.round is None else str(one.round),
            *(str(value) for value in (counts.turns, counts.forks, counts.sampled_tokens, counts.given_tokens)),
            "" if times is None else f"{times.model:.3g} s",
            "" if times is None else f"{times.outside:.3g} s",
        )
    console = screen()
    if table.row_count:
        if not console.is_terminal:
            console.width = max(console.width, PIPED_WIDTH)
        console.print(table)
    else:
        say(console, NONE_KEPT)
