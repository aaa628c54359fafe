"""`rljob timeline`: what the machines of a job did and when, as a file for ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rljob_runtime.cli.cluster import NoAnswer
from rljob_runtime.cli.files import Unusable, fail
from rljob_runtime.timeline.convert import trace_of
from rljob_runtime.timeline.record import FILE, Record, read_records


def timeline(
    job: Annotated[str, typer.Argument(help="The folder of a local run, or the name of an RLJob in a cluster.")],
    out: Annotated[Path, typer.Option(help="File to write, for ui.perfetto.dev or chrome://tracing.")],
    rounds: Annotated[int | None, typer.Option(min=1, help="Only the newest of these many rounds.")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the job. Default: the context's.")
    ] = None,
) -> None:
    """Write what each machine of a job did and when, as a trace-event file."""
    try:
        records = newest(read_records(_text(job, namespace)), rounds)
    except Unusable as error:
        raise fail(str(error)) from None
    except NoAnswer as error:
        raise fail(str(error), code=1) from None
    except OSError as error:
        raise fail(f"{error.filename or job}: {error.strerror}") from None
    if not records:
        raise fail(f"{job} has no timeline: no round has ended, or the run is of an earlier version")
    try:
        trace_of(records).write(out)
    except OSError as error:
        raise fail(f"--out {out} cannot be written: {error.strerror}") from None
    lost = sum(record.lost for record in records)
    left_out = f"; {lost} intervals were not recorded" if lost else ""
    count = len({record.round for record in records})
    recorded = sum(len(record.intervals) for record in records)
    typer.echo(f"{out}: {count} rounds, {recorded} intervals{left_out}; open it in https://ui.perfetto.dev")


def newest(records: list[Record], rounds: int | None) -> list[Record]:
    """Return the records of the newest rounds; of all rounds without a number."""
    kept = sorted({record.round for record in records})[-(rounds or 0) :]
    return [record for record in records if record.round in kept]


def _text(job: str, namespace: str | None) -> str:
    """Return the content of the job's timeline. Raises `Unusable`, `NoAnswer` and `OSError`."""
    folder = Path(job)
    if namespace is None and folder.is_dir():
        path = folder / FILE
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if "/" in job:
        raise Unusable(f"{job}: no such folder; the folder of a run (--workdir), or an RLJob's name would be right")
    from rljob_runtime.cli.pod_files import pieces, pod_text

    return "".join(pieces(pod_text(job, namespace), "timeline"))
