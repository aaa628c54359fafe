"""Kept models: the weights of evaluated rounds as Hugging Face folders, until it is known which are the best.

An evaluation ends while later rounds train. So the model is written before its result is known, and deleted when a
better one exists. Each is a folder `step-00000012`, complete or absent. Only rank 0 accesses the volume."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from rljob_runtime.training.checkpoint.safetensors_writer import sync_folder
from rljob_runtime.training.checkpoint.store import CheckpointError, name_of

log = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d{8,})")


class KeptModels:
    """The models in one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, step: int) -> Path:
        """Return the folder of the model after `step` updates."""
        return self._root / name_of(step)

    def steps(self) -> tuple[int, ...]:
        """Return the steps that have a model, rising."""
        if not self._root.is_dir():
            return ()
        return tuple(sorted(int(match[1]) for path in self._root.iterdir() if (match := _NAME.fullmatch(path.name))))

    def retain(self, keep: Collection[int] | None) -> tuple[int, ...]:
        """Delete the models except those of the steps to keep; None keeps all. Return the steps that have one.

        A folder that cannot be deleted stays, with a warning.
        """
        for step in self.steps():
            if keep is None or step in keep:
                continue
            gone = self._root / f".old-{name_of(step)}"
            try:
                shutil.rmtree(gone, ignore_errors=True)
                self.folder(step).rename(gone)
                shutil.rmtree(gone)
            except OSError as error:
                log.warning("the model of step %d cannot be deleted: %s", step, error)
        return self.steps()

    def export(self, step: int, target: Path) -> None:
        """Make `target` a copy of a model, by hard links where the volume has them.

        An earlier folder stays if that fails. Raises `CheckpointError`.
        """
        partial, old = target.with_name(f".partial-{target.name}"), target.with_name(f".old-{target.name}")
        try:
            for leftover in (partial, old):
                if leftover.exists():
                    shutil.rmtree(leftover)
            shutil.copytree(self.folder(step), partial, copy_function=_link)
            sync_folder(partial)
            if target.exists():
                target.rename(old)
            partial.rename(target)
            sync_folder(target.parent)
            shutil.rmtree(old, ignore_errors=True)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(partial, ignore_errors=True)
            why = getattr(error, "strerror", None) or error
            raise CheckpointError(f"the best model (step {step}) cannot be exported to {target}: {why}") from error


def _link(source: str, target: str) -> str:
    with contextlib.suppress(OSError):
        os.link(source, target)
        return target
    return shutil.copy2(source, target)
