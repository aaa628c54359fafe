"""Checkpoint store: checkpoints on a volume, complete or absent.

A checkpoint is a folder `step-00000012`. It holds the tensors (`tensors.safetensors`), the rest of the trainer's state
(`state.json`), the coordinator's snapshot if there is one (`coordinator.json`), and the marker `COMPLETE` with size and
SHA-256 of each file. It is written under another name, synced, and renamed when complete. A folder without its marker,
or with other bytes, is not used. Only rank 0 accesses the volume.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from rljob_runtime.training.checkpoint.safetensors_writer import (
    Written,
    data_bytes,
    file_sha256,
    sync_folder,
    write_tensors,
    write_text,
)

log = logging.getLogger(__name__)

TENSORS, STATE, SNAPSHOT, MARKER = "tensors.safetensors", "state.json", "coordinator.json", "COMPLETE"
PARTIAL = ".partial-"
FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")
_SLACK = 1 << 20
"""Bytes that must be free beyond the tensors, for the small files and the file system."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or used.

    Existing checkpoints stay untouched. The message names the action. `full`: the volume has no room.
    """

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


def is_full(error: OSError) -> bool:
    """Return whether an error of a file system says that there is no room, on the volume or in a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def name_of(step: int) -> str:
    """Return the folder name of the checkpoint after `step` updates."""
    return f"step-{step:08d}"


@dataclass(frozen=True)
class Checkpoint:
    """A complete and verified checkpoint.

    `coordinator_snapshot` is unchanged.
    """

    folder: Path
    step: int
    state: Mapping[str, Any]
    coordinator_snapshot: str | None = None

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, Tensor]]:
        """Open the tensors by name.

        Each is read on access.
        """
        with safe_open(self.folder / TENSORS, framework="pt") as file:
            yield _Lazy(file)


class _Lazy(Mapping[str, Tensor]):
    def __init__(self, file: Any):
        self.file = file

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self.file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.keys())

    def __len__(self) -> int:
        return len(self.file.keys())


class CheckpointStore:
    """The checkpoints in one folder.

    The newest `keep` stay.
    """

    def __init__(self, root: Path, keep: int):
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one checkpoint must stay")
        self.root = root
        self.keep = keep

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        shapes: Mapping[str, torch.Size],
        dtype: torch.dtype,
        tensors: Iterable[tuple[str, Tensor]],
        coordinator_snapshot: str | None = None,
    ) -> str:
        """Write the checkpoint of `step` and return its name.

        An existing one stays as it is. Raises `CheckpointError` when the disk refuses; then nothing has changed, except
        that a leftover is removed.
        """
        name = name_of(step)
        if self._is_complete(self.root / name):
            return name
        partial = self.root / f"{PARTIAL}{name}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._clear_partials()
            self._check_free_space(step, data_bytes(shapes, dtype) + _SLACK)
            partial.mkdir()
            files = {
                TENSORS: write_tensors(partial / TENSORS, shapes, dtype, tensors),
                STATE: write_text(partial / STATE, json.dumps({**state, "format": FORMAT, "step": step})),
            }
            if coordinator_snapshot is not None:
                files[SNAPSHOT] = write_text(partial / SNAPSHOT, coordinator_snapshot)
            write_text(partial / MARKER, json.dumps({file: asdict(written) for file, written in files.items()}))
            sync_folder(partial)
            if (self.root / name).exists():  # a complete one would have been kept
                shutil.rmtree(self.root / name)
            partial.rename(self.root / name)
            sync_folder(self.root)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(self._explain(step, error), full=is_full(error)) from error
        self._prune(name)
        return name

    def newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint, or None without any.

        Damaged ones are skipped with a warning. If only damaged ones exist, it raises `CheckpointError` instead of
        starting from scratch.
        """
        damaged: list[str] = []
        for folder in self._folders():
            if not self._marked(folder):
                log.warning("checkpoint %s has no %s marker: it was not finished, and is passed over", folder, MARKER)
                continue
            try:
                files = self._verify(folder)
                state = json.loads((folder / STATE).read_text())
                coordinator_snapshot = (folder / SNAPSHOT).read_text() if SNAPSHOT in files else None
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("checkpoint %s is damaged and passed over: %s", folder, error)
                damaged.append(f"{folder.name}: {error}")
                continue
            if state.get("format") != FORMAT:
                raise CheckpointError(f"{folder} has format {state.get('format')}; this version reads format {FORMAT}")
            return Checkpoint(folder, state["step"], state, coordinator_snapshot)
        if damaged:
            raise CheckpointError(
                f"no usable checkpoint in {self.root} ({'; '.join(damaged)}). Restore one, or empty the folder to "
                "start from the model"
            )
        return None

    def _folders(self) -> list[Path]:
        """Return the folders, newest first."""
        if not self.root.is_dir():
            return []
        found = [(int(match[1]), path) for path in self.root.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found, reverse=True)]

    @staticmethod
    def _marked(folder: Path) -> bool:
        return (folder / MARKER).is_file()

    def _is_complete(self, folder: Path) -> bool:
        if not self._marked(folder):
            return False
        try:
            self._verify(folder)
        except (OSError, ValueError, TypeError):
            return False
        return True

    @staticmethod
    def _verify(folder: Path) -> set[str]:
        files = {file: Written(**entry) for file, entry in json.loads((folder / MARKER).read_text()).items()}
        for file, written in files.items():
            path = folder / file
            if path.stat().st_size != written.bytes:
                raise ValueError(f"{file} has {path.stat().st_size} bytes; it was written with {written.bytes}")
            if file_sha256(path) != written.sha256:
                raise ValueError(f"{file} does not have the checksum it was written with")
        return set(files)

    def _check_free_space(self, step: int, needed: int) -> None:
        free = shutil.disk_usage(self.root).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"it needs {needed / 2**20:.1f} MiB and {free / 2**20:.1f} MiB are free")

    def _explain(self, step: int, error: OSError) -> str:
        text = f"checkpoint of step {step} cannot be written to {self.root}: {error.strerror or error}."
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            text += " Give the volume more room or lower spec.checkpoint.keep."
        before = next((folder.name for folder in self._folders() if self._marked(folder)), None)
        return f"{text} {before} is untouched" if before else f"{text} There is no earlier one"

    def _clear_partials(self) -> None:
        for path in self.root.glob(f"{PARTIAL}*"):
            shutil.rmtree(path)

    def _prune(self, newest: str) -> None:
        """Remove all but the newest `keep`; the checkpoint just written counts as the first.

        The marker is removed first.
        """
        complete = [folder for folder in self._folders() if self._marked(folder) and folder.name != newest]
        for folder in complete[self.keep - 1 :]:
            try:
                (folder / MARKER).unlink()
                shutil.rmtree(folder)
            except OSError as error:
                log.warning("old checkpoint %s cannot be removed: %s", folder, error)
