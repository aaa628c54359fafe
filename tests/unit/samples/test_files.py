"""Sample files are whole or absent, and a reader survives what a crash or another version left."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.samples import Sample, SampleFolder, SampleOutcome, TornFile

SAMPLES = st.builds(
    Sample,
    round=st.integers(1, 9),
    prompt_id=st.just("0.3"),
    sample=st.integers(0, 9),
    attempt=st.integers(1, 9),
    outcome=st.sampled_from(SampleOutcome),
    prompt=st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.text()}), max_size=2).map(tuple),
    response=st.text(),
    tokens=st.integers(0, 9),
    reason=st.none() | st.just("RaceLost"),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    rewards=st.dictionaries(st.sampled_from(["right", "short"]), st.floats(0, 1)),
    weight_versions=st.lists(st.integers(1, 9), max_size=2).map(tuple),
)


def sample(number: int = 0, **changes: object) -> Sample:
    return Sample(round=1, prompt_id="0.1", sample=number, attempt=1, outcome=SampleOutcome.TRAINED, **changes)


@given(SAMPLES)
def test_a_line_reads_as_it_was_written(one):
    line = one.to_json()
    assert "\n" not in line
    assert Sample.from_json(line) == one


@given(SAMPLES)
def test_a_cut_line_is_no_sample(one):
    line = one.to_json()
    for end in (1, len(line) // 2, len(line) - 1):
        with pytest.raises(ValueError):  # noqa: PT011
            Sample.from_json(line[:end])


def test_fields_of_another_version_are_ignored():
    line = json.dumps({**sample().to_dict(), "mood": "good"})
    assert Sample.from_json(line) == sample()


@pytest.mark.parametrize("line", ["[]", "{}", '{"outcome": "won"}', "3"])
def test_what_is_no_sample_is_refused(line):
    with pytest.raises(ValueError):  # noqa: PT011
        Sample.from_json(line)


def test_a_round_is_read_back(tmp_path):
    folder = SampleFolder(tmp_path)
    written = [sample(number, response="a\nb\u2028c") for number in range(3)]
    folder.write(7, written, keep=5)
    assert folder.file(7).name == "round-000007.jsonl"
    assert folder.rounds() == [7]
    assert list(folder.read(7)) == written


def test_a_torn_last_line_is_left_out(tmp_path):
    folder = SampleFolder(tmp_path)
    folder.write(1, [sample(0), sample(1)], keep=5)
    whole = folder.file(1).read_bytes()
    folder.file(1).write_bytes(whole[:-5])
    assert list(folder.read(1)) == [sample(0)]


def test_a_bad_line_in_the_middle_is_named(tmp_path):
    folder = SampleFolder(tmp_path)
    folder.write(1, [sample(0)], keep=5)
    folder.file(1).write_bytes(b"{}\n" + folder.file(1).read_bytes())
    with pytest.raises(TornFile, match=r"round-000001.jsonl: line 1: not a sample"):
        list(folder.read(1))


def test_old_and_abandoned_rounds_are_deleted(tmp_path):
    folder = SampleFolder(tmp_path)
    for number in (1, 2, 3, 4):
        folder.write(number, [sample()], keep=3)
    assert folder.rounds() == [2, 3, 4]
    (folder.path / "notes.txt").write_text("mine")
    folder.write(3, [sample()], keep=3)
    assert folder.rounds() == [2, 3], "a rewind abandoned round 4"
    assert (folder.path / "notes.txt").exists()


def test_a_failed_write_leaves_the_former_file(tmp_path, monkeypatch):
    folder = SampleFolder(tmp_path)
    folder.write(1, [sample(0)], keep=3)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        folder.write(1, [sample(1)], keep=3)
    assert list(folder.read(1)) == [sample(0)]
    assert [entry.name for entry in folder.path.iterdir()] == ["round-000001.jsonl"]


def test_a_job_without_samples_has_no_rounds(tmp_path):
    assert SampleFolder(tmp_path).rounds() == []
