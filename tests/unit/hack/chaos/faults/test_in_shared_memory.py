"""What is written into a machine's shared memory fills it to the byte, and a process that shall die is waited for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hack.chaos.faults.in_shared_memory import DIES_IN, FILL, FILLED, LEFT, REFUSE, REMOVE
from hack.chaos.faults.switches import NO_ROOM
from hack.chaos.in_pods.failing_engines import DIES, REFUSED
from rljob_runtime.rollout.kv.kv_file import Held, KvFileWriter, NoRoom, Origin, digest, needed_for_weights, plan
from rljob_runtime.rollout.kv.layout import KvShape

ALL = 16 << 20
SLOT = 1 << 20
SMALL = f"""
import os, pathlib, types
def statvfs(path):
    taken = sum(512 * one.stat().st_blocks for one in pathlib.Path(path).rglob("*") if one.is_file())
    return types.SimpleNamespace(f_frsize=1, f_bavail={ALL} - taken)
os.statvfs = statvfs
"""
"""Makes any folder a file system of so many bytes."""


def ran(script: str, *arguments: str) -> list[int]:
    inside = (sys.executable, "-c", script, *arguments)
    done = subprocess.run(inside, capture_output=True, text=True, check=True, timeout=120)
    pids: list[int] = json.loads(done.stdout.splitlines()[-1])["pids"]
    return pids


def left(shared: Path) -> int:
    """Bytes that KV may take: all that are free but for those of the weights."""
    taken = sum(512 * one.stat().st_blocks for one in shared.rglob("*") if one.is_file())
    return ALL - taken - needed_for_weights(shared / "rljob-a" / "rollout-1")


def wait_for(shared: Path, low: int, high: int) -> None:
    end = time.monotonic() + 60
    while not low <= left(shared) < high:
        assert time.monotonic() < end, left(shared)
        time.sleep(0.02)


def test_shared_memory_is_filled_up_to_what_the_relay_needs(tmp_path: Path) -> None:
    segment = tmp_path / "rljob-a" / "rollout-1"
    segment.mkdir(parents=True)
    (segment / "slot-0").write_bytes(bytes(SLOT))
    kv = tmp_path / "kv"
    kv.write_bytes(bytes(SLOT))
    assert left(tmp_path) > LEFT + SLOT
    assert ran(SMALL + FILL, str(tmp_path), "rollout-1", str(LEFT), "120") != []
    wait_for(tmp_path, LEFT, LEFT + 4096)
    kv.unlink()
    wait_for(tmp_path, LEFT, LEFT + 4096)
    (segment / "slot-1").write_bytes(bytes(SLOT))
    wait_for(tmp_path, LEFT, LEFT + 4096)
    assert ran(REMOVE, str(tmp_path), FILLED) != []
    assert left(tmp_path) > LEFT + SLOT


def test_a_shared_memory_without_room_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "much").write_bytes(bytes(ALL))
    assert ran(SMALL + FILL, str(tmp_path), "rollout-1", str(LEFT), "120") == []
    assert not (tmp_path / FILLED).exists()


def test_a_refusal_has_the_words_that_are_looked_for(tmp_path: Path) -> None:
    shape = KvShape("made up", "uint8", layers=1, kv_heads=1, block_size=16, token_bytes=512)
    index = plan(Origin("a/job", "rollout-1.1", 3), shape, {"one": Held(320, digest(range(320)))})
    with pytest.raises(NoRoom, match=NO_ROOM):
        KvFileWriter.create(tmp_path / "kv", index, 1 << 60)


@pytest.mark.parametrize("dies", [True, False])
def test_a_process_that_shall_die_is_waited_for(tmp_path: Path, dies: bool) -> None:
    inside = (sys.executable, "-c", DIES_IN, str(tmp_path), "asleep", "600" if dies else "0.2")
    waits = subprocess.Popen(inside, stdout=subprocess.PIPE, text=True)
    assert waits.stdout is not None
    assert waits.stdout.readline() == "waits for a switch\n"
    if dies:
        assert (tmp_path / DIES).read_text() == "asleep"
        (tmp_path / DIES).unlink()
    pids = json.loads(waits.communicate(timeout=120)[0])["pids"]
    assert bool(pids) is dies
    assert list(tmp_path.iterdir()) == []


def test_a_refused_size_is_taken_back(tmp_path: Path) -> None:
    assert ran(REFUSE, str(tmp_path), "2") != []
    assert (tmp_path / REFUSED).read_text() == "2"
    assert ran(REMOVE, str(tmp_path), REFUSED) != []
    assert ran(REMOVE, str(tmp_path), REFUSED) != []
    assert list(tmp_path.iterdir()) == []
