"""Run folder of a local run: one run at a time works in it, and all runs belong to one job.

The complete spec, the job's name and a digest of the prompts are kept in `run.json`. From the first drawn prompt, every
change is checked as an API server checks an edit of a suspended job (`rljob_api.admission.immutability.NEVER`). A store
refers to prompts by number, so with other data its history would refer to prompts that were never drawn.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_api import InvalidSpec, RLJob, load
from rljob_api.admission.immutability import NEVER, differences
from rljob_api.errors import show
from rljob_runtime.coordinator.store.connection import has_history
from rljob_runtime.data.records import local_path
from rljob_runtime.relay.relay import MIN_KEY_BYTES

LOCK_SECONDS = 10.0
"""Seconds in which the processes of a killed run must end."""
UID_BYTES = 8
SHOWN = 1024
"""Characters of a value in a message: two paths often differ only at their ends."""


Change = tuple[str, Any, Any]
"""Path, former value and present value of a field; `rljob_api.errors.ABSENT` for none."""


class FolderRefused(Exception):
    """The run cannot use the folder. The message gives the reason and the action. Nothing in the folder was changed."""


@dataclass(frozen=True)
class RunFolder:
    """A folder that this process holds.

    `uid` is the job's, the same for every run in the folder. `changes` are the fields of the spec that differ from the
    previous run's, once that has drawn a prompt.
    """

    path: Path
    uid: str
    changes: tuple[Change, ...] = field(default=(), compare=False)


@contextlib.contextmanager
def hold(path: Path, job: RLJob) -> Iterator[RunFolder]:
    """Create the folder if needed, and hold it.

    Raises `FolderRefused`, and `StoreUnusable` if its store is unusable.
    """
    with _refusing(path):
        path.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(path / "run.lock")
    try:
        with _refusing(path):
            folder = RunFolder(path, _uid(path), _accept(path, job))
        yield folder
    finally:
        os.close(lock)


def changes(path: Path, job: RLJob) -> tuple[Change, ...]:
    """Return what the next run of a job would change in a folder that exists, as `RunFolder.changes`.

    Raises `FolderRefused` and `StoreUnusable` as that run would.
    """
    with _refusing(path):
        lock = _take_lock(path / "run.lock")
        try:
            return _compared(path, job, _digests(job)) or ()
        finally:
            os.close(lock)


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise `FolderRefused` in place of an error of the folder's file system."""
    try:
        yield
    except OSError as error:
        cure = "give --workdir a folder that can be written to"
        raise FolderRefused(f"{error.filename or path}: cannot be used: {error.strerror}; {cure}") from None


def _take_lock(path: Path) -> int:
    """Return a locked descriptor; the lock ends with this process, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            lives = holder.isdecimal() and Path(f"/proc/{holder}").exists()
            if lives or time.monotonic() > deadline:
                os.close(descriptor)
                raise FolderRefused(
                    f"{path.parent}: another run (process {holder or 'unknown'}) works in this folder; wait for its "
                    "end, stop it, or give --workdir another folder"
                ) from None
            time.sleep(0.1)  # The holder's children may outlive it briefly.
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor


def _uid(folder: Path) -> str:
    """Return the identity that the folder gives its job."""
    path = folder / "uid"
    uid = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if not uid:
        if (folder / "state.db").exists():
            raise FolderRefused(f"{path}: is empty or missing; restore it, or give --workdir another folder")
        uid = secrets.token_hex(UID_BYTES)
        write_private(path, uid)
    return uid


def relay_key(folder: Path) -> Path:
    """Return the file of a key that only this folder's runs know.

    A key that is too short, as a full disk may leave it, is made again: no run uses it.
    """
    path = folder / "auth" / "relay-key"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists() or len(path.read_bytes().strip()) < MIN_KEY_BYTES:
        write_private(path, secrets.token_hex(32))
    return path


def write_private(path: Path, text: str) -> None:
    """Write the complete text or nothing, readable by this user only."""
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


# --- identity --------------------------------------------------------------------------------------------------------


def _accept(folder: Path, job: RLJob) -> tuple[Change, ...]:
    """Record the spec of this run; return the changes to that of a previous run with a history.

    Raises `FolderRefused` for a change that an existing job does not allow.
    """
    digests = _digests(job)
    found = _compared(folder, job, digests)
    if found != ():
        write_private(folder / "run.json", json.dumps({"job": job.manifest(), "sha256": digests}, indent=1))
    return found or ()


def _compared(folder: Path, job: RLJob, digests: dict[str, str]) -> tuple[Change, ...] | None:
    """Return the changes to the spec of a previous run with a history; None without such a run.

    Raises `FolderRefused` for a change that an existing job does not allow.
    """
    path = folder / "run.json"
    if not path.exists() or not has_history(folder / "state.db"):
        return None
    before, kept = _recorded(path)
    if refused := list(_refused(before, job, kept, digests)):
        cure = "set it back, or give --workdir another folder"
        raise FolderRefused("\n".join(f"{folder}: {change}; {cure}" for change in refused))
    return tuple(differences(before, job, sorted({*before.spec.to_dict(), *job.spec.to_dict()})))


def _recorded(path: Path) -> tuple[RLJob, dict[str, str]]:
    """Return the job and the digests of the previous run. Raises `FolderRefused`."""
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        return load(recorded["job"]), dict(recorded["sha256"])
    except (ValueError, KeyError, TypeError, InvalidSpec) as error:
        cure = "remove it if the job's name and all that cannot change are those of the previous run"
        raise FolderRefused(f"{path}: cannot be read: {error}; {cure}") from None


def _refused(before: RLJob, job: RLJob, kept: dict[str, str], digests: dict[str, str]) -> Iterator[str]:
    if before.name != job.name:
        yield f"metadata.name: {show(job.name)} cannot change in this folder; it was {show(before.name)}"
    changed = list(differences(before, job, NEVER))
    for path, was, now in changed:
        yield f"{path}: {show(now, SHOWN)} cannot change in this folder; it was {show(was, SHOWN)}"
    if not changed:
        for path, digest in digests.items():
            if (was := kept.get(path, digest)) != digest:
                yield f"{path}: the content has changed (sha256 is {digest[:12]}; it was {was[:12]})"


def _digests(job: RLJob) -> dict[str, str]:
    """Return the SHA-256 of prompts that are files, by field path. Missing files are reported by the data package."""
    found = {}
    for index, (source, prompts) in enumerate(job.spec.data.prompts_of.items()):
        field = f"spec.data.sources[{index}].prompts" if source else "spec.data.prompts"
        for name, given in {"file": prompts.file, "dataset": prompts.dataset}.items():
            if given is not None and (path := local_path(given.path)).exists():
                found[f"{field}.{name}.path"] = _digest(path)
    return found


def _digest(path: Path) -> str:
    """Return the digest of a file, or of all files of a folder with their names."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    combined = hashlib.sha256()
    for part in sorted(one for one in path.rglob("*") if one.is_file()):
        combined.update(f"{part.relative_to(path)}\0{_digest(part)}\n".encode())
    return combined.hexdigest()
