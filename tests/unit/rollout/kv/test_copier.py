"""The copier of a rank: the checksums of its heads, which are computed concurrently."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rljob_runtime.rollout.kv import kv_file
from rljob_runtime.rollout.kv.copier import KvCopier
from rljob_runtime.rollout.kv.kv_file import Held, KvFileWriter, KvRegions, Origin, digest, plan
from rljob_runtime.rollout.kv.layout import KvShape

SHAPE = KvShape("test", "float32", layers=2, kv_heads=4, block_size=4, token_bytes=8)
TABLES = {"a": [5, 0, 3], "b": [1, 7], "c": [6]}
HELD = {name: Held(4 * len(table), digest(range(4 * len(table)))) for name, table in TABLES.items()}


def copier(heads: range = range(4), seed: int = 0) -> KvCopier:
    random = torch.Generator().manual_seed(seed)
    caches = [torch.randn(8, 4, 4, 2, generator=random)[:, heads.start : heads.stop] for _ in range(2)]
    return KvCopier(caches, SHAPE, heads, heads)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[KvFileWriter]:
    writer = KvFileWriter.create(tmp_path / "kv", plan(Origin("ns/job", "rollout-0-1", 7), SHAPE, HELD))
    yield writer
    writer.close()


@pytest.fixture
def sealed(writer: KvFileWriter) -> KvFileWriter:
    """Written by two ranks, of two heads each."""
    halves = [copier(heads).write(writer.path, writer.index, TABLES) for heads in (range(2), range(2, 4))]
    writer.seal({name: [(halves[0][name] | halves[1][name])[head] for head in range(4)] for name in TABLES})
    return writer


def test_each_head_of_each_response_has_its_own_checksum(writer: KvFileWriter) -> None:
    found = copier().write(writer.path, writer.index, TABLES)
    regions = KvRegions(writer.path, writer.index)
    assert found == {name: regions.checksums(name, range(4)) for name in TABLES}
    assert len({checksum for heads in found.values() for checksum in heads.values()}) == 12


@pytest.mark.parametrize(("response", "head"), [("a", 0), ("b", 3), ("c", 2)])
def test_one_wrong_bit_is_found_in_its_response(sealed: KvFileWriter, response: str, head: int) -> None:
    asked = [(sealed.path, name) for name in ("c", "a", "b")]
    assert copier().open(asked) == [True] * 3
    region = KvRegions(sealed.path, sealed.index, writable=True).region(response, range(head, head + 1))
    region[0, 1, 0, 5] ^= 1
    assert copier().open(asked) == [name != response for _, name in asked]
    others = range(2) if head >= 2 else range(2, 4)
    assert copier(others).open(asked) == [True] * 3, "a rank reads its own heads only"


def test_what_is_missing_is_not_intact_and_the_rest_is(sealed: KvFileWriter, tmp_path: Path) -> None:
    asked = [(sealed.path, "a"), (sealed.path, "none"), (tmp_path / "none.kv", "a"), (sealed.path, "b")]
    assert copier().open(asked) == [True, False, False, True]


def test_checksums_are_computed_concurrently(sealed: KvFileWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits until another is computed too: one after the other, none would end."""
    two, plain = threading.Barrier(2, timeout=20.0), kv_file.checksum

    def checksum(region: torch.Tensor) -> int:
        two.wait()
        return plain(region)

    monkeypatch.setattr(kv_file, "checksum", checksum)
    assert copier().open([(sealed.path, "a")]) == [True]
    copier().write(sealed.path, sealed.index, {"a": TABLES["a"]})
