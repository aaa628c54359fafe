"""`rljob run FILE`: the complete job on this machine, on a local Ray, without a cluster."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from rljob_api import RLJob, load
from rljob_api.admission.loading import parse
from rljob_api.errors import ABSENT, show
from rljob_api.status import RoundReport
from rljob_runtime.cli.files import Unusable, fail, mistakes_of, read_text
from rljob_runtime.cli.run.accelerators import missing_accelerators, visible_accelerators
from rljob_runtime.cli.run.display import display
from rljob_runtime.cli.run.ending import INTERRUPTED, ending, interrupted_at_start
from rljob_runtime.cli.run.manifest import localised, parse_claims
from rljob_runtime.cli.run.preview import present_folder, preview
from rljob_runtime.cli.screen import say, screen
from rljob_runtime.protocols import TrainReport


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
    _run(console, job, place, options.command(), source.absolute().parent)


@dataclass(frozen=True)
class _Options:
    """What names a job on the command line."""

    file: Path
    workdir: Path | None
    assignments: Sequence[str]
    claims: Sequence[str]

    def job(self) -> RLJob:
        """Return the job as it is on this machine. Raises `Unusable` with a line for each mistake."""
        with mistakes_of(self.file):
            document = parse(read_text(self.file))
            folders = parse_claims(self.claims)
            return load(localised(document, self.file.absolute().parent, folders, self.assignments))

    def command(self) -> str:
        """Return the command that runs the job again."""
        words = ["rljob", "run", str(self.file)]
        words += [word for assignment in self.assignments for word in ("--set", assignment)]
        words += [word for claim in self.claims for word in ("--claim", claim)]
        words += ["--workdir", str(self.workdir)] if self.workdir is not None else []
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


def _run(console: Console, job: RLJob, place: Path, again: str, folder: Path) -> None:
    # Ray and torch take seconds to import, so the manifest is checked first.
    from rljob_runtime.coordinator.store.connection import StoreUnusable
    from rljob_runtime.local import EndedEarly, FolderRefused, ProcessFailed, RayFailed
    from rljob_runtime.local import run as run_local

    def tell_changes(changes: Sequence[tuple[str, object, object]]) -> None:
        for line in _lines(changes):
            say(console, f"{job.name}: {line}")

    trained_rounds = 0

    def tell_round(report: RoundReport, trained: TrainReport) -> None:
        nonlocal trained_rounds
        trained_rounds += 1
        shown.round(report, trained)

    try:
        with display(console, job.spec.rounds) as shown:
            result = run_local(
                job, place, shown.status, tell_round, tell_changes, manifest=folder, on_interrupt=shown.interrupted
            )
    except (FolderRefused, StoreUnusable) as error:
        raise fail(str(error)) from None
    except (RayFailed, ProcessFailed) as error:
        raise fail(f"{job.name}: {error}", code=1) from None
    except (EndedEarly, KeyboardInterrupt) as error:
        if isinstance(error, EndedEarly) or trained_rounds:
            told = f"ended; it goes on from its last checkpoint; logs in {place}\ncontinue with"
        else:
            told = interrupted_at_start(place)
        raise fail(f"{job.name}: {told}: {again}", INTERRUPTED) from None
    end = ending(job, place, result, again, trained_rounds)
    say(console, end.line, end.style)
    for line in end.more:
        say(console, line)
    if end.code:
        raise typer.Exit(end.code)


def _lines(changes: Sequence[tuple[str, object, object]]) -> list[str]:
    """Return a line for each changed field."""
    return [f"{path} is {_value(now)}; it was {_value(was)}" for path, was, now in changes]


def _value(value: object) -> str:
    return "absent" if value is ABSENT else show(value)


def _preview(job: RLJob, place: Path) -> None:
    """Print the resolved spec as YAML, and the rest as its comments."""
    # Imported here, because the import takes seconds.
    from rljob_runtime.models.source import cache_folder

    changes = _changes(job, place) if (place / "state.db").exists() else None
    facts = [("folder", f"{place} ({'new' if changes is None else 'continues'})")]
    facts += [("change", line) for line in changes or ()]
    facts += preview(job.spec, cache_folder(), visible_accelerators(os.environ)).items()
    if job.spec.environments:
        facts.append(("chat template", _template(job, present_folder(job.spec.model.source, cache_folder()))))
    for label, value in facts:
        print(f"# {label}: {value}")
    print(yaml.safe_dump(job.manifest(), sort_keys=False, allow_unicode=True), end="")


def _template(job: RLJob, model: Path | None) -> str:
    """Return what is known of the chat template. A refusal ends the command, as it would end the run."""
    from rljob_runtime.local.template_check import TemplateRefused, check_template

    try:
        return check_template(job, model)
    except TemplateRefused as error:
        raise fail(f"{job.name}: {error}") from None


def _changes(job: RLJob, place: Path) -> list[str]:
    """Return what a run would change in a used folder. A refusal ends the command, as it would end the run."""
    from rljob_runtime.coordinator.store.connection import StoreUnusable
    from rljob_runtime.local import FolderRefused
    from rljob_runtime.local.run_folder import changes

    try:
        return _lines(changes(place, job))
    except (FolderRefused, StoreUnusable) as error:
        raise fail(str(error)) from None
