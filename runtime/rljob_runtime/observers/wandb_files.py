"""Files of W&B's tables: those of the newest rounds stay on the volume.

W&B writes a table as a file of the run, and copies it twice for the upload. It deletes the copies of an online run when
they are uploaded, and nothing of an offline run: `wandb sync` reads all of it later."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

DATA_FOLDER = "WANDB_DATA_DIR"
"""The variable that says where W&B copies files for the upload."""


def last_to_delete(tables: Iterable[tuple[float, str]], keep: int) -> float | None:
    """Return the time at which the last table to be deleted was written; None if all stay.

    `tables` are times in seconds and paths. The copies of a table are written before it, and after the table before.
    """
    written = sorted(tables)
    return written[-keep - 1][0] if len(written) > keep else None


class TableFiles:
    """The files of one job's tables, in `folder`. Those of the newest `keep` tables stay."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._runs = folder / "wandb"
        self._copies = self._runs / "copies"
        self._keep = keep

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Have W&B write copies into the job's folder: the default is in the pod, and is lost with it."""
        before = os.environ.get(DATA_FOLDER)
        os.environ[DATA_FOLDER] = str(self._copies.absolute())
        try:
            yield
        finally:
            if before is None:
                del os.environ[DATA_FOLDER]
            else:
                os.environ[DATA_FOLDER] = before

    def delete_old(self) -> None:
        """Delete tables and copies of earlier rounds. One that cannot be deleted stays, with a warning."""
        tables = [*self._runs.glob("*run-*/files/media/table/samples_*.table.json")]
        try:
            last = last_to_delete([(path.stat().st_mtime, path.name) for path in tables], self._keep)
        except OSError as error:
            log.warning("old tables in %s cannot be found: %s", self._runs, error)
            return
        if last is None:
            return
        for path in (*tables, *self._copies.rglob("*")):
            try:
                # W&B deletes copies meanwhile.
                if path.is_file() and path.stat().st_mtime <= last:
                    path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s cannot be deleted: %s", path, error)
