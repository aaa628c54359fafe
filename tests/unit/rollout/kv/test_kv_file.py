"""The KV file: what it takes, what it refuses, who may read it, and what is left when a process dies."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.rollout.kv import kv_file
from rljob_runtime.rollout.kv.kv_file import (
    Index,
    KvFileWriter,
    KvRegions,
    Mismatch,
    NoRoom,
    Unusable,
    needed_for_weights,
    plan,
    read_index,
    remove_older,
    sweep_kv,
    sweep_kv_of_all_jobs,
    written_bytes,
)
from rljob_runtime.rollout.kv_exchange import KvExchange
from tests.support.rollout.kv_files import HELD, ORIGIN, SHAPE, TOKENS, create, die_with_a_file, fill


@pytest.fixture
def written(tmp_path: Path) -> Iterator[KvFileWriter]:
    writer = create(tmp_path / "kv")
    fill(writer)
    yield writer
    writer.close()


def test_a_reader_finds_what_was_written(written: KvFileWriter) -> None:
    index = read_index(written.path)
    assert index == written.index
    assert index.origin == ORIGIN
    assert index.shape == SHAPE
    regions = KvRegions(written.path, index)
    for name, tokens in TOKENS.items():
        assert index.responses[name].tokens == len(tokens)
        assert regions.region(name, range(2)).shape == (2, 2, len(tokens) // 4, 32)
        assert regions.is_intact(name, range(2))
        both = regions.region(name, range(2))
        assert torch.equal(regions.region(name, range(1, 2)), both[1:])
    assert written.nbytes == SHAPE.response_bytes(12) + SHAPE.response_bytes(8)
    assert written.path.stat().st_mode & 0o777 == 0o600


def test_what_a_reader_writes_stays_its_own(written: KvFileWriter) -> None:
    index = read_index(written.path)
    KvRegions(written.path, index).region("a", range(2)).zero_()
    assert KvRegions(written.path, index).is_intact("a", range(2))


def test_a_file_that_is_not_sealed_is_damaged(tmp_path: Path) -> None:
    writer = create(tmp_path)
    with pytest.raises(Unusable, match="incomplete") as raised:
        read_index(writer.path)
    assert raised.value.cause is Mismatch.DAMAGED
    writer.close()


def test_a_response_that_was_not_written_is_left_out(tmp_path: Path) -> None:
    writer = create(tmp_path)
    writer.seal({"b": [1, 2]})
    assert list(read_index(writer.path).responses) == ["b"]
    writer.close()


def test_a_file_without_responses_can_be_read(tmp_path: Path) -> None:
    writer = KvFileWriter.create(tmp_path, plan(ORIGIN, SHAPE, {}))
    writer.seal({})
    assert read_index(writer.path).responses == {}
    assert writer.nbytes == 0
    writer.close()


@pytest.mark.parametrize("head", [0, 1])
@pytest.mark.parametrize("name", ["a", "b"])
def test_one_wrong_bit_is_found_in_its_response_and_head_only(written: KvFileWriter, name: str, head: int) -> None:
    index = read_index(written.path)
    region = KvRegions(written.path, index, writable=True).region(name, range(head, head + 1))
    region[0, -1, -1, -1] ^= 1
    regions = KvRegions(written.path, index)
    assert not regions.is_intact(name, range(2))
    assert not regions.is_intact(name, range(head, head + 1))
    assert regions.is_intact(name, range(1 - head, 2 - head))
    assert regions.is_intact("b" if name == "a" else "a", range(2))


@given(place=st.integers(0, 31), bit=st.integers(0, 7))
def test_no_damaged_header_is_believed(place: int, bit: int) -> None:
    """Of its 32 bytes, each bit counts."""
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
    writer = create(folder / f"kv-test-{os.getpid()}")
    try:
        fill(writer)
        with writer.path.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ (1 << bit)]))
        with pytest.raises(Unusable) as raised:
            read_index(writer.path)
        assert raised.value.cause is Mismatch.DAMAGED
    finally:
        writer.close()
        writer.path.parent.rmdir()


def test_a_damaged_index_is_not_believed(written: KvFileWriter) -> None:
    with written.path.open("r+b") as file:
        content = file.read()
        file.seek(content.rindex(b"rollout-0-1"))
        file.write(b"rollout-0-2")
    with pytest.raises(Unusable, match="the index is damaged"):
        read_index(written.path)


@pytest.mark.parametrize("content", [b"", b"short", bytes(4096)])
def test_any_other_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.kv").write_bytes(content)
    with pytest.raises(Unusable) as raised:
        read_index(tmp_path / "x.kv")
    assert raised.value.cause is Mismatch.DAMAGED


def test_a_file_that_is_gone_is_missing(written: KvFileWriter) -> None:
    index = read_index(written.path)
    mapped = KvRegions(written.path, index)
    written.close()
    written.close()
    assert mapped.is_intact("a", range(2)), "what is mapped stays"
    with pytest.raises(Unusable) as raised:
        read_index(written.path)
    assert raised.value.cause is Mismatch.MISSING


@pytest.mark.parametrize(
    ("origin", "shape", "response", "tokens", "cause"),
    [
        ({}, {}, "a", TOKENS["a"], None),
        ({}, {}, "a", (*TOKENS["a"], 5, 6, 7), None),
        ({"job": "ns/other"}, {}, "a", TOKENS["a"], Mismatch.FOREIGN),
        ({"machine": "rollout-0-2"}, {}, "a", TOKENS["a"], Mismatch.FOREIGN),
        ({"weight_version": 8}, {}, "a", TOKENS["a"], Mismatch.VERSION),
        ({"weight_version": 6}, {}, "a", TOKENS["a"], Mismatch.VERSION),
        ({}, {"kernel": "other"}, "a", TOKENS["a"], Mismatch.SHAPE),
        ({}, {"dtype": "bfloat16"}, "a", TOKENS["a"], Mismatch.SHAPE),
        ({}, {"layers": 3}, "a", TOKENS["a"], Mismatch.SHAPE),
        ({}, {"kv_heads": 4}, "a", TOKENS["a"], Mismatch.SHAPE),
        ({}, {"block_size": 8}, "a", TOKENS["a"], Mismatch.SHAPE),
        ({}, {"token_bytes": 16}, "a", TOKENS["a"], Mismatch.SHAPE),
        ({}, {}, "c", TOKENS["a"], Mismatch.MISSING),
        ({}, {}, "a", TOKENS["b"], Mismatch.TOKENS),
        ({}, {}, "a", TOKENS["a"][:-1], Mismatch.TOKENS),
        ({}, {}, "a", (*TOKENS["a"][:-1], 5), Mismatch.TOKENS),
        ({}, {}, "a", (), Mismatch.TOKENS),
    ],
)
def test_kv_is_used_only_where_everything_agrees(
    origin: dict[str, object],
    shape: dict[str, object],
    response: str,
    tokens: tuple[int, ...],
    cause: Mismatch | None,
) -> None:
    index = plan(ORIGIN, SHAPE, HELD)
    asked = replace(ORIGIN, **origin), replace(SHAPE, **shape)  # type: ignore[arg-type]
    assert index.mismatch(*asked, response, tokens) == cause


def test_an_engine_that_transfers_no_kv_has_another_shape() -> None:
    assert plan(ORIGIN, SHAPE, HELD).mismatch(ORIGIN, None, "a", TOKENS["a"]) is Mismatch.SHAPE


def test_the_index_is_text() -> None:
    index = plan(ORIGIN, SHAPE, HELD)
    assert Index.from_json(index.to_json()) == index
    assert index.to_json().startswith(b'{"origin": {"job": "ns/job"')


def test_too_little_shared_memory_is_refused_with_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = plan(ORIGIN, SHAPE, HELD)
    size = 4096 + 2 * 4096 + 4096  # header, two responses, index
    monkeypatch.setattr(kv_file, "_free", lambda folder: size + 1000)
    with pytest.raises(NoRoom, match=r"2 responses needs 16,384 bytes .* weights need 1,001 more, and 17,384 are free"):
        KvFileWriter.create(tmp_path, index, keep_free=1001)
    assert not list(tmp_path.iterdir())
    writer = KvFileWriter.create(tmp_path, index, keep_free=1000)
    assert writer.path.stat().st_blocks * 512 >= size, "the memory is there before anything is written"
    writer.close()
    assert not list(tmp_path.iterdir())


def test_memory_that_another_takes_first_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoRoom, match="No space left"):
        create(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("slots", "needed"),
    [
        ({}, 0),
        ({"slot-0": (1 << 20, 1 << 20)}, 1 << 20),
        ({"slot-0": (1 << 20, 1 << 20), "slot-1": (1 << 20, 0)}, 1 << 20),
    ],
)
def test_the_relay_keeps_room_for_two_versions(tmp_path: Path, slots: dict[str, tuple[int, int]], needed: int) -> None:
    """Each slot is (size, bytes that are allocated)."""
    for name, (size, allocated) in slots.items():
        with (tmp_path / name).open("wb") as file:
            file.write(b"x" * allocated)
            file.flush()
            os.fsync(file.fileno())
            os.ftruncate(file.fileno(), size)
    assert abs(needed_for_weights(tmp_path) - needed) <= 1 << 16


def test_two_writers_do_not_take_the_same_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both begin while only one of the two files fits beside the weights."""
    index, both = plan(ORIGIN, SHAPE, HELD), threading.Barrier(2)
    allocate = os.posix_fallocate

    def allocate_late(*arguments: int) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # The other has seen the same free bytes if nothing stops it.
        allocate(*arguments)

    def free(folder: Path) -> int:
        return 30_000 - sum(path.stat().st_blocks * 512 for path in folder.glob("*.kv"))

    def create_one(_: int) -> KvFileWriter | None:
        try:
            return KvFileWriter.create(tmp_path / "kv", index, keep_free=10_000)
        except NoRoom:
            return None

    monkeypatch.setattr(os, "posix_fallocate", allocate_late)
    monkeypatch.setattr(kv_file, "_free", free)
    with ThreadPoolExecutor(2) as pool:
        made = [writer for writer in pool.map(create_one, range(2)) if writer is not None]
    assert len(made) == 1
    assert free(tmp_path / "kv") >= 10_000
    made[0].close()


def test_a_sweep_takes_no_file_that_is_not_locked_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def open_and_sweep(path: Path, *arguments: int) -> int:
        descriptor = opened(path, *arguments)
        if path.suffix == ".kv":
            assert sweep_kv(tmp_path / "kv") == []
        return descriptor

    monkeypatch.setattr(os, "open", open_and_sweep)
    writer = create(tmp_path / "kv")
    assert writer.path.exists()
    writer.close()


@pytest.mark.parametrize("times", [1, 100])
def test_a_folder_that_is_swept_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    opened, left = os.open, times

    def sweep_and_open(path: Path, *arguments: int) -> int:
        nonlocal left
        if path.suffix != ".kv" and left > 0:
            left -= 1
            path.rmdir()
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", sweep_and_open)
    if times == 1:
        create(tmp_path / "kv").close()
    else:
        with pytest.raises(FileNotFoundError):
            create(tmp_path / "kv")


def test_a_folder_that_is_swept_while_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there, so it was not made, and is gone when that is looked at."""
    folder, made = tmp_path / "kv", os.mkdir
    folder.mkdir()

    def make_and_sweep(path: Path, mode: int) -> None:
        try:
            made(path, mode)
        except FileExistsError:
            folder.rmdir()
            raise

    monkeypatch.setattr(os, "mkdir", make_and_sweep)
    create(folder).close()


def test_writers_that_begin_while_others_sweep_all_have_their_file(tmp_path: Path) -> None:
    folder = tmp_path / "kv"

    def begin(_: int) -> KvFileWriter:
        sweep_kv(folder)
        return create(folder)

    for _ in range(10):
        with ThreadPoolExecutor(4) as pool:
            writers = list(pool.map(begin, range(4)))
        assert sorted(folder.glob("*.kv")) == sorted(writer.path for writer in writers)
        for writer in writers:
            writer.close()
        assert sweep_kv(folder) == []
        assert not folder.exists()


def test_a_slot_that_the_relay_replaces_meanwhile_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slot-0", "slot-1"):
        (tmp_path / name).write_bytes(bytes(1 << 20))
    stat = Path.stat

    def gone(path: Path, **options: bool) -> os.stat_result:
        if path.name == "slot-0":
            raise FileNotFoundError(path)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", gone)
    assert abs(needed_for_weights(tmp_path) - (1 << 20)) <= 1 << 16


@pytest.mark.parametrize(("loaded", "stays"), [(6, True), (7, True), (8, False)])
def test_complete_files_of_earlier_versions_are_removed(written: KvFileWriter, loaded: int, stays: bool) -> None:
    folder = written.path.parent
    unfinished = KvFileWriter.create(folder, plan(replace(ORIGIN, weight_version=1), SHAPE, HELD))
    mapped = KvRegions(written.path, read_index(written.path))
    assert remove_older(folder, loaded) == ([] if stays else [written.path])
    assert written.path.exists() == stays
    assert unfinished.path.exists(), "its writer is at work"
    assert mapped.is_intact("a", range(2)), "what is mapped stays"
    unfinished.close()
    assert remove_older(folder / "none", loaded) == []


def test_files_of_dead_writers_are_swept_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    dead = die_with_a_file(tmp_path)
    living = create(tmp_path)
    (tmp_path / "other").write_text("not a KV file")
    assert sweep_kv(tmp_path) == [dead]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([living.path.name, "other"])
    living.close()
    assert sweep_kv(tmp_path / "none") == []


def test_files_of_runs_that_were_killed_are_swept_in_every_folder(tmp_path: Path) -> None:
    """A replica that starts does so; a killed local run may never start again."""
    dead = die_with_a_file(tmp_path / "rljob-1" / "rollout-0-kv")
    living = create(tmp_path / "rljob-2" / "rollout-0-kv")
    weights = tmp_path / "rljob-3" / "rollout-0"
    weights.mkdir(parents=True)
    (weights.parent / "rollout-0-kv").mkdir()
    other = tmp_path / "of-another" / "x-kv" / "x.kv"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"")
    KvExchange(tmp_path / "rljob-4" / "rollout-0-kv", "ns/job", "rollout-0-1", weights)
    assert not dead.parent.parent.exists()
    assert living.path.exists()
    assert list(weights.parent.iterdir()) == [weights]
    assert other.exists()
    assert sweep_kv_of_all_jobs(tmp_path) == []
    living.close()


def test_files_that_are_written_count_as_taken(written: KvFileWriter) -> None:
    taken = written_bytes(written.path.parent)
    assert taken >= written.path.stat().st_size > 0
    assert written_bytes(written.path.parent / "none") == 0
