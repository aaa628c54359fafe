"""Layout arithmetic, JSON round trip and refusal of manifests that cannot be right."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.relay.manifest import ALIGNMENT, ITEM_SIZES, Manifest, ManifestError, checksum, layout

shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
tensor_lists = st.lists(st.tuples(st.sampled_from(sorted(ITEM_SIZES)), shapes), max_size=8)


@given(tensors=tensor_lists, chunk_bytes=st.integers(1, 5000), version=st.integers(0, 2**40))
def test_layout_places_every_tensor_once_aligned_in_order_without_overlap(tensors, chunk_bytes, version):
    named = [(f"t{index}", dtype, shape) for index, (dtype, shape) in enumerate(tensors)]
    manifest = layout(version, named, chunk_bytes)
    assert [(t.name, t.dtype, t.shape) for t in manifest.tensors] == named
    end = 0
    for tensor in manifest.tensors:
        assert tensor.offset % ALIGNMENT == 0
        assert 0 <= tensor.offset - end < ALIGNMENT
        assert tensor.nbytes == math.prod(tensor.shape) * ITEM_SIZES[tensor.dtype]
        end = tensor.offset + tensor.nbytes
    assert manifest.total_bytes == end


@given(tensors=tensor_lists, chunk_bytes=st.integers(1, 5000))
def test_chunks_cover_the_buffer_exactly(tensors, chunk_bytes):
    manifest = layout(1, [(f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(tensors)], chunk_bytes)
    end = 0
    for index in range(manifest.chunks):
        start, nbytes = manifest.chunk_range(index)
        assert start == end
        assert 0 < nbytes <= chunk_bytes
        end = start + nbytes
    assert end == manifest.total_bytes
    with pytest.raises(IndexError):
        manifest.chunk_range(manifest.chunks)


@given(data=st.binary(max_size=3000), chunk_bytes=st.integers(1, 700))
def test_json_round_trip_within_the_reserved_size(data, chunk_bytes):
    plan = layout(7, [("weight", "uint8", (len(data),))], chunk_bytes)
    manifest = plan.seal(checksum(data[i : i + chunk_bytes]) for i in range(0, len(data), chunk_bytes))
    assert manifest.sealed
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert len(manifest.to_json()) <= plan.max_json_bytes()


def test_a_changed_byte_changes_the_manifest():
    plan = layout(7, [("weight", "uint8", (4,))], 4)
    assert plan.seal([checksum(b"abcd")]) != plan.seal([checksum(b"abce")])


BAD = {
    "not json": (lambda m: "{", "Invalid JSON"),
    "no version": (lambda m: m.pop("version"), "version"),
    "negative version": (lambda m: m.update(version=-1), "version"),
    "text for a number": (lambda m: m.update(total_bytes="5"), "total_bytes"),
    "zero chunk": (lambda m: m.update(chunk_bytes=0), "chunk_bytes"),
    "unknown field": (lambda m: m.update(owner="x"), "owner"),
    "unknown dtype": (lambda m: m["tensors"][0].update(dtype="object"), "dtype is 'object'"),
    "unaligned": (lambda m: m["tensors"][1].update(offset=257), "offset of 'b' is 257"),
    "wrong size": (lambda m: m["tensors"][0].update(nbytes=11), "nbytes of 'a' is 11; 12 would be right"),
    "negative shape": (lambda m: m["tensors"][0].update(shape=[-3]), "tensors.0.shape"),
    "overlap": (lambda m: m["tensors"][1].update(offset=0), "offset of 'b' is 0"),
    "outside the buffer": (lambda m: m.update(total_bytes=256), "total_bytes is 256"),
    "same name twice": (lambda m: m["tensors"][1].update(name="a"), "same name twice"),
    "too few checksums": (lambda m: m.update(checksums=[1]), "checksums has 1 entries"),
    "checksum too large": (lambda m: m["checksums"].__setitem__(0, 2**32), "checksums.0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_manifest_that_cannot_be_right_is_refused_by_name(case):
    manifest = layout(3, [("a", "float32", (3,)), ("b", "bfloat16", (2, 2))], 100).seal([1, 2, 3])
    fields = json.loads(manifest.to_json())
    spoil, message = BAD[case]
    spoiled = spoil(fields)
    text = spoiled if isinstance(spoiled, str) else json.dumps(fields)
    with pytest.raises(ManifestError, match=message):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([("a", "complex64", (1,))], "tensor 'a': dtype is 'complex64'"),
        ([("a", "uint8", (1,)), ("a", "uint8", (1,))], "same name twice"),
        ([("", "uint8", (1,))], "tensors.0.name"),
    ],
)
def test_a_layout_that_cannot_be_right_is_refused(tensors, message):
    with pytest.raises(ManifestError, match=message):
        layout(1, tensors, 64)
