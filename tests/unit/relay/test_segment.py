"""The shared-memory store: what a reader holds is whole and stays, whatever the writer does or however it dies."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rljob_runtime.relay.manifest import checksum, layout
from rljob_runtime.relay.segment import (
    IncompleteVersion,
    NoVersion,
    Segment,
    SegmentBusy,
    SegmentCorrupt,
    SegmentWriter,
    VersionOrder,
    _map_complete,
    sweep_segments,
)
from rljob_runtime.relay.slot import SegmentFull
from tests.support.examples import examples
from tests.support.relay import assert_whole, commit, content, fill, sealed

FORK = multiprocessing.get_context("fork")


def test_a_committed_version_is_read_bit_for_bit(memory):
    writer = SegmentWriter.open(memory / "s")
    for version in (1, 2, 3, 7):
        commit(writer, version)
        assert_whole(memory / "s", version)
        assert Segment.open(memory / "s").version() == version


def test_nothing_committed_is_no_version(memory):
    with pytest.raises(NoVersion):
        Segment.open(memory / "absent").current()
    writer = SegmentWriter.open(memory / "s")
    writer.begin(sealed(1)[0])
    assert Segment.open(memory / "s").version() is None


def test_a_draft_is_not_committed_before_every_chunk_is_verified(memory):
    writer = SegmentWriter.open(memory / "s")
    commit(writer, 1)
    manifest, data = sealed(2)
    draft = writer.begin(manifest)
    draft.buffer()[:] = data
    for index in range(1, manifest.chunks):
        assert draft.accept(index, checksum(draft.chunk(index)))
    with pytest.raises(IncompleteVersion, match="9 of 10"):
        writer.commit(draft)
    assert_whole(memory / "s", 1)
    assert draft.missing() == [(0, 1)]
    draft.accept(0, checksum(draft.chunk(0)))
    writer.commit(draft)
    assert_whole(memory / "s", 2)


def test_a_chunk_with_another_checksum_is_not_accepted(memory):
    writer = SegmentWriter.open(memory / "s")
    draft = writer.begin(sealed(1)[0])
    assert not draft.accept(0, checksum(draft.chunk(0)))
    assert not draft.has(0)


@pytest.mark.parametrize("version", [4, 5])
def test_versions_only_rise(memory, version):
    writer = SegmentWriter.open(memory / "s")
    commit(writer, 5)
    with pytest.raises(VersionOrder):
        commit(writer, version, salt=1)
    assert_whole(memory / "s", 5)


def test_a_reader_keeps_its_version_while_slots_are_overwritten(memory):
    writer = SegmentWriter.open(memory / "s")
    commit(writer, 1)
    held = Segment.open(memory / "s").current()
    for version in range(2, 8):
        commit(writer, version)
    assert bytes(held.buffer) == content(held.manifest)
    assert held.manifest.version == 1


def test_slots_are_used_again_once_no_reader_maps_them(memory):
    writer = SegmentWriter.open(memory / "s")
    for version in (1, 2):
        commit(writer, version)
    before = {path.name: path.stat().st_ino for path in (memory / "s").glob("slot-*")}
    for version in range(3, 9):
        held = Segment.open(memory / "s").current()
        del held
        commit(writer, version)
    assert {path.name: path.stat().st_ino for path in (memory / "s").glob("slot-*")} == before


def test_a_write_by_a_reader_is_private(memory):
    writer = SegmentWriter.open(memory / "s")
    commit(writer, 1)
    _, buffer = Segment.open(memory / "s").current()
    buffer[:100] = bytes(100)
    assert_whole(memory / "s", 1)


def test_one_writer_at_a_time(memory):
    writer = SegmentWriter.open(memory / "s")
    with pytest.raises(SegmentBusy, match="another process"):
        SegmentWriter.open(memory / "s")
    writer.close()
    SegmentWriter.open(memory / "s").close()
    assert not (memory / "s").exists()


def test_a_damaged_header_is_named_not_read(memory, monkeypatch):
    writer = SegmentWriter.open(memory / "s")
    commit(writer, 1)
    with open(memory / "s" / "slot-0", "r+b") as slot:
        slot.seek(12)
        slot.write(b"\xff")
    monkeypatch.setattr("rljob_runtime.relay.segment._READ_SECONDS", 0.05)
    with pytest.raises(SegmentCorrupt, match="no valid header"):
        Segment.open(memory / "s").current()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: root only")
def test_too_little_shared_memory_is_said_before_anything_is_written(memory):
    (memory / "small").mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", memory / "small"], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    try:
        writer = SegmentWriter.open(memory / "small" / "s")
        commit(writer, 1, nbytes=300_000)
        before = os.statvfs(memory / "small").f_bavail
        with pytest.raises(SegmentFull, match=r"needs [\d,]+ more bytes of shared memory and [\d,]+ are free"):
            writer.begin(layout(2, [("w", "uint8", (900_000,))], 1024))
        assert os.statvfs(memory / "small").f_bavail == before
        assert_whole(memory / "small" / "s", 1)
        commit(writer, 2, nbytes=300_000)
        writer.close()
    finally:
        subprocess.run(["umount", memory / "small"], check=True)


def _die_after(folder: Path, chunks: int, flipped: bool) -> None:
    """Write version 2 until `chunks` are done, then be killed."""
    writer = SegmentWriter.open(folder)
    manifest, data = sealed(2)
    draft = writer.begin(manifest)
    for index in range(chunks):
        start, nbytes = manifest.chunk_range(index)
        draft.chunk(index)[:] = data[start : start + nbytes]
        draft.accept(index, checksum(draft.chunk(index)))
    if flipped:
        writer.commit(draft)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("chunks", "flipped"), [*((chunks, False) for chunks in range(11)), (10, True)])
def test_a_writer_killed_at_any_chunk_leaves_a_whole_version(memory, chunks, flipped):
    folder = memory / "s"
    first = SegmentWriter.open(folder)
    commit(first, 1)
    first.current.retire()
    os.close(first._lock)  # As if this process had ended without a word.
    child = FORK.Process(target=_die_after, args=(folder, chunks, flipped))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert_whole(folder, 2 if flipped else 1)
    heir = SegmentWriter.open(folder)
    assert len(list(folder.glob("slot-*"))) == 1, "the unfinished draft is removed"
    assert_whole(folder, 2 if flipped else 1)
    commit(heir, 3)
    assert_whole(folder, 3)


def test_a_late_reader_does_not_read_what_a_dead_writer_left(memory):
    writer = SegmentWriter.open(memory / "s")
    commit(writer, 1)
    found = os.open(memory / "s" / "current", os.O_RDONLY)
    commit(writer, 2)
    draft = writer.begin(sealed(3)[0])
    draft.chunk(0)[:] = bytes(1024)
    draft.file.unlock()  # As the writer's death would.
    assert _map_complete(found) is None
    os.close(found)
    assert_whole(memory / "s", 2)


def _commit_forever(folder: Path, started) -> None:
    writer = SegmentWriter.open(folder)
    for version in range(1, 100_000):
        commit(writer, version, nbytes=40_000)
        started.set()


def test_readers_never_see_a_torn_version_under_a_writer_in_full_speed(memory):
    started = FORK.Event()
    child = FORK.Process(target=_commit_forever, args=(memory / "s", started))
    child.start()
    try:
        assert started.wait(30)
        seen = []
        held = []
        while len(seen) < 300 or len(set(seen)) <= 10:  # The writer, too, has to have its turns.
            manifest, buffer = Segment.open(memory / "s").current()
            held = [*held[-3:], (manifest, buffer)]
            for older, bytes_ in held:
                assert all(
                    checksum(bytes_[start : start + nbytes]) == older.checksums[index]
                    for index in range(older.chunks)
                    for start, nbytes in [older.chunk_range(index)]
                )
            seen.append(manifest.version)
        assert seen == sorted(seen)
    finally:
        child.kill()
        child.join()


def test_only_segments_of_dead_processes_are_swept(memory):
    alive = SegmentWriter.open(memory / "rljob-1" / "rollout-0")
    commit(alive, 1)
    dead = [memory / "rljob-1" / "rollout-1", memory / "rljob-2" / "rollout-0", memory / "rljob-3"]
    mine = memory / "rljob-4" / "rollout-0"
    for folder in [*dead, mine]:
        writer = FORK.Process(target=_die_after, args=(folder, 3, False))
        writer.start()
        writer.join()
    (memory / "of-another").mkdir()
    assert sweep_segments(memory, keep=mine) == dead
    assert {path.name for path in memory.iterdir()} == {"rljob-1", "rljob-4", "of-another"}
    assert mine.exists()
    assert_whole(alive.folder, 1)


def test_writers_that_start_while_others_sweep_all_start(memory):
    def start(number: int) -> SegmentWriter:
        sweep_segments(memory)
        return SegmentWriter.open(memory / "rljob-1" / f"rollout-{number}")

    for _ in range(10):
        with ThreadPoolExecutor(8) as pool:
            writers = list(pool.map(start, range(8)))
        for writer in writers:
            commit(writer, 1)
            assert_whole(writer.folder, 1)
            writer.close()


def test_a_folder_swept_while_it_is_made_is_made_again(memory, monkeypatch):
    make, tries = Path.mkdir, []

    def mkdir(path, *args, **kwargs):
        tries.append(path)
        if len(tries) == 1:  # there when it was to be made, gone when it was looked at
            raise FileExistsError(path)
        make(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    SegmentWriter.open(memory / "s").close()
    assert len(tries) > 1


def test_a_file_in_the_folders_place_is_told(memory):
    (memory / "s").write_text("")
    with pytest.raises(FileExistsError):
        SegmentWriter.open(memory / "s")


class Store(RuleBasedStateMachine):
    """Any order of drafting, writing, spoiling, committing, reading, letting go, and dying."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(
            tempfile.mkdtemp(prefix="test-relay-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        )
        self.writer = SegmentWriter.open(self.folder / "s")
        self.draft = None
        self.data = b""
        self.committed = 0
        self.next = 1
        self.held = []

    @rule(nbytes=st.integers(0, 3000))
    def begin(self, nbytes):
        manifest, self.data = sealed(self.next, nbytes, 512)
        self.draft = self.writer.begin(manifest)
        self.next += 1

    @precondition(lambda self: self.draft is not None)
    @rule(share=st.floats(0, 1), spoiled=st.booleans())
    def write_chunk(self, share, spoiled):
        chunks = self.draft.manifest.chunks
        if not chunks:
            return
        index = min(int(share * chunks), chunks - 1)
        start, nbytes = self.draft.manifest.chunk_range(index)
        target = self.draft.chunk(index)
        if self.draft.has(index):
            return  # No writer writes into a chunk that was verified.
        target[:] = self.data[start : start + nbytes]
        if spoiled:
            target[0] ^= 1
        assert self.draft.accept(index, checksum(target)) != spoiled

    @precondition(lambda self: self.draft is not None)
    @rule()
    def write_rest(self):
        for first, last in self.draft.missing():
            for index in range(first, last):
                start, nbytes = self.draft.manifest.chunk_range(index)
                self.draft.chunk(index)[:] = self.data[start : start + nbytes]
                assert self.draft.accept(index, checksum(self.draft.chunk(index)))

    @precondition(lambda self: self.draft is not None)
    @rule()
    def commit(self):
        if self.draft.missing():
            with pytest.raises(IncompleteVersion):
                self.writer.commit(self.draft)
        else:
            self.writer.commit(self.draft)
            self.committed = self.draft.manifest.version
            self.draft = None

    @rule()
    def hold(self):
        if self.committed:
            self.held.append(Segment.open(self.folder / "s").current())

    @precondition(lambda self: self.held)
    @rule()
    def let_go(self):
        self.held.pop(0)

    @rule()
    def die_and_restart(self):
        for slot in (self.writer.current, self.draft):
            if slot is not None:
                slot.retire()
        os.close(self.writer._lock)
        self.draft = None
        self.writer = SegmentWriter.open(self.folder / "s")
        current = self.writer.current
        assert (current.manifest.version if current else 0) == self.committed

    @invariant()
    def what_is_read_is_the_last_committed_whole(self):
        if not self.committed:
            assert Segment.open(self.folder / "s").version() is None
        else:
            assert_whole(self.folder / "s", self.committed)

    @invariant()
    def what_is_held_does_not_change(self):
        for manifest, buffer in self.held:
            assert bytes(buffer) == content(manifest)

    def teardown(self):
        self.held.clear()
        self.writer.close()
        shutil.rmtree(self.folder)


Store.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25)
TestStore = Store.TestCase


def test_fill_is_the_content_the_other_tests_expect(memory):
    writer = SegmentWriter.open(memory / "s")
    draft = writer.begin(layout(1, [("w", "uint8", (3000,))], 1024))
    fill(draft, bytes(3000))
    writer.commit(draft)
    with pytest.raises(AssertionError):
        assert_whole(memory / "s", 1)
