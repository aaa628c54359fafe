"""`rljob episodes RUN`: the attempts of a run's episodes, as a table, or in the format ATIF."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from rljob_runtime.audit import NoHistory
from rljob_runtime.cli.episodes.atif import atif_documents
from rljob_runtime.cli.episodes.stored import StoredAttempt, kept_texts, stored_attempts
from rljob_runtime.cli.files import Unusable, fail
from rljob_runtime.cli.screen import say, screen
from rljob_runtime.samples import TornFile

PIPED_WIDTH = 160
"""Characters of a line where no terminal bounds it."""


class Format(StrEnum):
    """How episodes are printed."""

    TABLE = "table"
    ATIF = "atif"


def episodes(
    run: Annotated[Path, typer.Argument(help="The folder of a run (--workdir), or a copy of a job's volume.")],
    form: Annotated[
        Format, typer.Option("--format", help="A table, or ATIF 1.8: a line of JSON for each trajectory.")
    ] = Format.TABLE,
    number: Annotated[int | None, typer.Option("--round", help="Only episodes that this round trained on.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", help="Only this attempt, by its number.")] = None,
) -> None:
    """Show the episodes of a run, while their rounds are kept (spec.store.keepRounds)."""
    try:
        found = stored_attempts(run, number, attempt)
        if form is Format.ATIF:
            texts = kept_texts(run) if run.is_dir() else {}
            name = (run if run.is_dir() else run.parent).resolve().name
            for one in found:
                for document in atif_documents(name, one, texts.get(one.number)):
                    typer.echo(json.dumps(document, ensure_ascii=False))
        else:
            _show(found)
    except (NoHistory, Unusable) as error:
        raise fail(str(error)) from None
    except TornFile as error:
        raise fail(str(error), code=1) from None
    except OSError as error:
        raise fail(f"{error.filename or run}: {error.strerror}") from None


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
        say(console, "no episode is kept: the job has no environments, or their rounds are pruned")
