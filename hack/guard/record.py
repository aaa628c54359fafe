"""Record: all that the guard observes of one checkout, in a JSON file that an interrupted run goes on with."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import counts, manifests, names, product, seeds
from .differences import Difference, compare, fewer

FORMAT = 1
PARTS = ("crd", "chart", "names", "tests", "mutants", "digests")
"""In the order of recording: what takes longest comes last."""
_SAVE_SECONDS = 10.0

Record = dict[str, Any]


class BadRecord(ValueError):
    """The file is no record, or one that cannot be compared."""


class TreeChanged(Exception):
    """Sources changed while seeds ran, so their digests may belong to different code."""


@dataclass(frozen=True)
class Options:
    """What to record, and how."""

    parts: Collection[str] = PARTS
    seeds: int = 300
    """Of each mode."""
    jobs: int = 1
    say: Callable[[str], None] = print


def make_record(file: Path, options: Options) -> Record:
    """Record the checkout in the file.

    Kept is what a former run recorded of the same sources: seeds, and parts that are not requested now.

    Raises `OtherTree`, `BadRecord`, `NoHelm`, and `TreeChanged` for sources that change meanwhile.
    """
    product.check_imports()
    code = fingerprint(product.ROOT)
    found: Record = {"digests": {}, **_known(file, code), "format": FORMAT, "commit": _commit(), "code": code}
    for part in PARTS:
        if part in options.parts:
            began = time.monotonic()
            found[part] = _observers(file, found, options)[part]()
            options.say(f"{part}: {time.monotonic() - began:.0f} s")
            _write(file, found)
    if fingerprint(product.ROOT) != code:
        file.unlink()
        raise TreeChanged(f"sources changed during the run; {file} is removed")
    return read_record(file)


def read_record(file: Path) -> Record:
    """Read a record. Raises `BadRecord`."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRecord(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise BadRecord(f"{file} is no record of format {FORMAT}; `python -m hack.guard record {file}` makes one")
    return found


def differences(old: Record, new: Record, parts: Collection[str] = PARTS) -> Iterator[Difference]:
    """Compare the parts of two records. Raises `BadRecord` for a part that a record lacks."""
    for part in (part for part in PARTS if part in parts):
        for record, which in ((old, "old"), (new, "new")):
            if not record.get(part):
                raise BadRecord(f"the {which} record has no {part}; `--skip {part}` leaves it out")
        match part:
            case "tests" | "mutants":
                yield from fewer(old[part], new[part], part)
            case "digests":
                yield from _digests(old[part], new[part])
            case _:
                yield from compare(old[part], new[part], (part,))


def fingerprint(root: Path) -> str:
    """Hash the product's sources: digests depend on nothing else of a checkout."""
    found = hashlib.sha256()
    for folder in product.SOURCES:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".py", ".json", ".jsonl") and file.is_file():
                found.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return found.hexdigest()[:16]


def _digests(old: seeds.Outcomes, new: seeds.Outcomes) -> Iterator[Difference]:
    """Yield the seeds that the new record has; none of a mode would compare nothing."""
    for mode, outcomes in old.items():
        shared = {seed: outcome for seed, outcome in outcomes.items() if seed in new.get(mode, {})}
        if not shared:
            raise BadRecord(f"the records share no seed of mode {mode}")
        yield from compare(shared, {seed: new[mode][seed] for seed in shared}, ("digests", mode))


def _observers(file: Path, found: Record, options: Options) -> dict[str, Callable[[], Any]]:
    root = product.ROOT
    return {
        "crd": lambda: manifests.record_crd(root),
        "chart": lambda: manifests.record_chart(root, manifests.find_helm()),
        "names": lambda: names.record_names(root),
        "tests": lambda: counts.count_tests(root),
        "mutants": lambda: {"all": counts.count_mutants(root)},
        "digests": lambda: _play(file, found, options),
    }


def _play(file: Path, found: Record, options: Options) -> seeds.Outcomes:
    saved = time.monotonic()

    def keep(outcomes: seeds.Outcomes, done: int, goal: int) -> None:
        nonlocal saved
        if done == goal or time.monotonic() - saved > _SAVE_SECONDS:
            saved = time.monotonic()
            _write(file, found | {"digests": outcomes})
            options.say(f"digests: {done} of {goal} seeds")

    return seeds.play_seeds(seeds.wanted(options.seeds), found["digests"], options.jobs, keep)


def _known(file: Path, code: str) -> Record:
    known = read_record(file) if file.exists() else {}
    return known if known.get("code") == code else {}


def _commit() -> str | None:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=product.ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _write(file: Path, found: Record) -> None:
    """Replace the file atomically: a reader, and a run that continues it, finds a complete one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.draft")
    draft.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(draft, file)
