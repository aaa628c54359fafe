"""The log of a local run on a full disk."""

from __future__ import annotations

import logging

from rljob_runtime.local.run import _log_to
from tests.support.small_disk import small_disk


def test_a_full_disk_is_said_once_and_without_a_traceback(tmp_path, capsys):
    log = logging.getLogger("rljob_runtime.of_this_test")
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        path = disk.folder / "coordinator.log"
        with _log_to(path):
            log.info("before")
            disk.fill()
            for number in range(200):
                log.info("%d: %s", number, "x" * 100)
            disk.make_room()
            log.info("after")
        lines = path.read_text().splitlines()
    assert capsys.readouterr().err.splitlines() == [
        f"{path}: cannot be written: [Errno 28] No space left on device; the run goes on"
    ]
    assert lines[0].endswith(": before")
    assert lines[-1].endswith(": after")
