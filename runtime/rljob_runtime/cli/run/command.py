"""`rljob run FILE`: the complete job on this machine, on a local Ray, without a cluster."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from rljob_api import InvalidSpec, RLJob, load
from rljob_api.constants import API_VERSION, KIND
from rljob_api.errors import ABSENT, show
from rljob_api.loading import parse
from rljob_runtime.cli.files import Unusable, fail, read_text
from rljob_runtime.cli.run.accelerators import missing_accelerators, visible_accelerators
from rljob_runtime.cli.run.display import display
from rljob_runtime.cli.run.ending import INTERRUPTED, ending
from rljob_runtime.cli.run.manifest import localised, parse_claims
from rljob_runtime.cli.run.preview import preview
from rljob_runtime.cli.screen import say, screen


def run(
    manifest: Annotated[Path | None, typer.Argument(metavar="FILE", help="An RLJob manifest.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="The same, as an option.")] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(help="Folder of store, checkpoints and logs. A second run continues. Default: runs/NAME."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Set a field, for example spec.rounds=3. Repeatable."),
    ] = None,
    claims: Annotated[
        list[str] | None,
        typer.Option("--claim", metavar="NAME=FOLDER", help="Folder in place of a claim (pvc://NAME/…). Repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the complete spec, memory and downloads; start nothing.")
    ] = False,
) -> None:
    """Run an RLJob to its end on this machine."""
    console = screen()
    source = _one_file(manifest, file)
    options = _Options(source, workdir, tuple(assignments or ()), tuple(claims or ()))
    try:
        job = options.job()
    except Unusable as error:
        raise fail(str(error)) from None
    place = workdir or Path("runs") / job.name
    if dry_run:
        _preview(job, place)
        return
    if missing := missing_accelerators(job.spec, visible_accelerators(os.environ)):
        raise fail("\n".join(f"{source}: {error}" for error in missing))
    _import_from(source.absolute().parent)
    _run(console, job, place, options.command())


class _Options:
    """What names a job on the command line."""

    def __init__(self, file: Path, workdir: Path | None, assignments: Sequence[str], claims: Sequence[str]) -> None:
        self._file, self._workdir = file, workdir
        self._assignments, self._claims = assignments, claims

    def job(self) -> RLJob:
        """Return the job as it is on this machine. Raises `Unusable` with a line for each mistake."""
        try:
            document = parse(read_text(self._file))
            folders = parse_claims(self._claims)
            return load(localised(document, self._file.absolute().parent, folders, self._assignments))
        except InvalidSpec as error:
            raise Unusable("\n".join(f"{self._file}: {mistake}" for mistake in error.errors)) from None

    def command(self) -> str:
        """Return the command that runs the job again."""
        words = ["rljob", "run", str(self._file)]
        words += [word for assignment in self._assignments for word in ("--set", assignment)]
        words += [word for claim in self._claims for word in ("--claim", claim)]
        words += ["--workdir", str(self._workdir)] if self._workdir is not None else []
        return shlex.join(words)


def _one_file(manifest: Path | None, file: Path | None) -> Path:
    if (manifest is None) == (file is None):
        raise fail("name one manifest: rljob run FILE")
    found = manifest or file
    assert found is not None
    return found


def _import_from(folder: Path) -> None:
    """Let workers import reward functions that lie beside the manifest."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{before}" if before else str(folder)


def _run(console: Console, job: RLJob, place: Path, again: str) -> None:
    # Ray and torch take seconds to import, so the manifest is checked first.
    from rljob_runtime.coordinator.store.connection import StoreUnusable
    from rljob_runtime.local import FolderRefused, RayFailed
    from rljob_runtime.local import run as run_local

    def tell_changes(changes: Sequence[tuple[str, object, object]]) -> None:
        for path, was, now in changes:
            was_, now_ = ("absent" if value is ABSENT else show(value) for value in (was, now))
            say(console, f"{job.name}: {path} is {now_}; it was {was_}")

    try:
        with display(console, job.spec.rounds) as shown:
            result = run_local(job, place, shown.status, shown.round, tell_changes)
    except (FolderRefused, StoreUnusable) as error:
        raise fail(str(error)) from None
    except RayFailed as error:
        raise fail(f"{job.name}: {error}", code=1) from None
    except KeyboardInterrupt:
        raise fail(f"{job.name}: interrupted before the first round; start again with: {again}", INTERRUPTED) from None
    end = ending(job, place, result, again)
    say(console, end.line, end.style)
    for line in end.more:
        say(console, line)
    if end.code:
        raise typer.Exit(end.code)


def _preview(job: RLJob, place: Path) -> None:
    """Print the resolved spec as YAML, and the rest as its comments."""
    # Imported here, because the import takes seconds.
    from rljob_runtime.models.source import cache_folder

    facts = {"folder": f"{place} ({'continues' if (place / 'state.db').exists() else 'new'})"}
    facts |= preview(job.spec, cache_folder(), visible_accelerators(os.environ))
    for label, value in facts.items():
        print(f"# {label}: {value}")
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": job.name}, "spec": job.spec.to_dict()}
    print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), end="")
