"""Files of every format give the same records, and a wrong file gives one error with its cure."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.spec.training import PromptDataset, PromptFile
from rljob_runtime.data.errors import BadRecord, DataError, too_many
from rljob_runtime.data.records import open_dataset, read_file
from rljob_runtime.data.rows import Fields, Record, parse_row

Rows = list[dict[str, Any]]
ROWS: Rows = [{"prompt": f"{i} + 1", "answer": f"{i + 1}.0", "level": "a,b"} for i in range(3)]


def write_jsonl(path: Path, rows: Rows) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_json(path: Path, rows: Rows) -> Path:
    path = path.with_suffix(".json")
    path.write_text(json.dumps(rows, indent=1))
    return path


def write_csv(path: Path, rows: Rows, suffix: str = ".csv") -> Path:
    path = path.with_suffix(suffix)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_tsv(path: Path, rows: Rows) -> Path:
    return write_csv(path, rows, ".tsv")


def write_parquet(path: Path, rows: Rows) -> Path:
    path = path.with_suffix(".parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write_misnamed_parquet(path: Path, rows: Rows) -> Path:
    return write_parquet(path, rows).rename(path.with_suffix(".jsonl"))


def write_arrow(path: Path, rows: Rows, new: Any = pyarrow.ipc.new_file) -> Path:
    path = path.with_suffix(".arrow")
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def write_arrow_stream(path: Path, rows: Rows) -> Path:
    return write_arrow(path, rows, pyarrow.ipc.new_stream)


WRITERS = [
    write_jsonl,
    write_json,
    write_csv,
    write_tsv,
    write_parquet,
    write_misnamed_parquet,
    write_arrow,
    write_arrow_stream,
]


def records_of(path: Path, **fields: str) -> list[Record | BadRecord]:
    source = read_file(PromptFile(path=str(path), **fields))
    return [source[index] for index in range(len(source))]


@pytest.mark.parametrize("write", WRITERS)
def test_every_format_gives_the_same_records(tmp_path, write: Callable[[Path, Rows], Path]):
    found = records_of(write(tmp_path / "data", ROWS))
    assert [(one.text_or_messages, one.answer, one.metadata) for one in found if isinstance(one, Record)] == [
        (row["prompt"], row["answer"], {"level": "a,b"}) for row in ROWS
    ]


@pytest.mark.parametrize("write", [write_jsonl, write_json, write_parquet, write_arrow])
def test_messages_and_nested_answers_are_read(tmp_path, write):
    """The layout of verl's data."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1"}]
    rows = [{"prompt": messages, "reward_model": {"style": "rule", "ground_truth": "2"}}]
    (record,) = records_of(write(tmp_path / "data", rows), answer_field="reward_model.ground_truth")
    assert isinstance(record, Record)
    assert record.text_or_messages == tuple(messages)
    assert record.answer == "2"


@pytest.mark.parametrize("write", WRITERS)
def test_a_missing_column_is_told(tmp_path, write):
    """Once for a table; of a file of objects, each may have other fields."""
    path = write(tmp_path / "data", ROWS)
    if write in (write_jsonl, write_json):
        assert "field 'question' is missing (fields: answer, level, prompt)" in str(
            records_of(path, prompt_field="question")[0]
        )
    else:
        for name, field in {"promptField": "prompt_field", "answerField": "answer_field"}.items():
            with pytest.raises(
                DataError, match=rf"has no column 'question'; it has prompt, answer, level; set {name} to one of them$"
            ):
                records_of(path, **{field: "question"})


@pytest.mark.parametrize("spelling", ["1e-05", "72.0", "1.10", "100000000000000000000000"])
def test_a_number_keeps_the_spelling_of_the_file(tmp_path, spelling):
    (tmp_path / "a.json").write_text(f'[{{"prompt": "x", "answer": {spelling}, "score": 0.5}}]')
    (tmp_path / "a.csv").write_text(f"prompt,answer\nx,{spelling}\n")
    (tmp_path / "a.jsonl").write_text(f'{{"prompt": "x", "r": {{"answer": {spelling}}}}}')
    for name, field in (("a.json", "answer"), ("a.csv", "answer"), ("a.jsonl", "r.answer")):
        (record,) = records_of(tmp_path / name, answer_field=field)
        assert isinstance(record, Record), record
        assert record.answer == spelling
    (record,) = records_of(tmp_path / "a.json")
    assert isinstance(record, Record)
    assert record.metadata == {"score": 0.5}, "other numbers stay numbers"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.parquet", b"PAR1 and no more", "cannot be read as Parquet: "),
        ("a.parquet", b'{"prompt": 1}', "is no Parquet file: it begins with b'{\"pr'"),
        ("a.arrow", b"ARROW1 and no more", "cannot be read as Arrow: "),
        ("a.arrow", b"nothing", "is no Arrow file"),
        ("a.jsonl", b"\x1f\x8b\x08\x00", "is compressed with gzip; unpack it first, or store it as Parquet"),
        ("a.csv", b"PK\x03\x04", "is compressed with zip"),
        ("a.json", b'{"data": []}', "is an object with data; a list of objects would be right"),
        ("a.json", b"3", "is one value; a list of objects would be right"),
        (
            "a.json",
            b'{"prompt": 1}\n{"prompt": 2}',
            "is no JSON: Extra data: line 2 column 1 (char 14); for an object a",
        ),
        ("a.json", b"\xff", "cannot be read as JSON: "),
        ("a.json", b"[" * 100_000, "cannot be read as JSON: "),
        ("a.json", b"[]", "is empty: there are no prompts to draw"),
        ("a.csv", b"", "has no column 'prompt'; it has none"),
        ("a.csv", b"prompt,answer\n", "is empty: there are no prompts to draw"),
        ("a.csv", b"prompt,answer\n\xe4,1\n", "is not UTF-8: byte 0xe4; store it as UTF-8"),
        ("a.csv", b'prompt,answer\n"a" b,1\n', "is no CSV after line 1: "),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as refused:
        records_of(tmp_path / name)
    assert str(refused.value).startswith(f"spec.data.prompts.file {tmp_path / name}")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bad_rows_are_told_with_their_place(tmp_path):
    (tmp_path / "a.csv").write_text("prompt,answer\nx,1\n,2\ny,3,4\n")
    assert [str(one) for one in records_of(tmp_path / "a.csv")[1:]] == [
        "line 3: field 'prompt' is empty",
        "line 4: has 1 cells more than the header",
    ]
    (tmp_path / "a.json").write_text('[{"prompt": "x", "answer": "1"}, 3, {"prompt": "x"}]')
    assert [str(one) for one in records_of(tmp_path / "a.json")[1:]] == [
        "record 1: is no object but int; an object would be right",
        "record 2: field 'answer' is missing (fields: prompt)",
    ]


cells = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=5))
def test_any_text_comes_back_from_csv_json_and_parquet(tmp_path, rows):
    table: Rows = [{"prompt": prompt, "answer": answer} for prompt, answer in rows]
    expected = [parse_row(i, "", row, Fields("prompt", "answer")) for i, row in enumerate(table)]
    for write in (write_csv, write_json, write_parquet):
        found = records_of(write(tmp_path / "data", table))
        for one, right in zip(found, expected, strict=True):
            assert isinstance(one, Record) == isinstance(right, Record)
            if isinstance(one, Record) and isinstance(right, Record):
                assert (one.text_or_messages, one.answer) == (right.text_or_messages, right.answer)


@pytest.mark.parametrize("write", [write_jsonl, write_csv, write_parquet])
def test_a_folder_of_data_files_is_a_data_set(tmp_path, write):
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "test"):
        write(folder / split, ROWS)
    found = open_dataset(PromptDataset(path=str(folder), split="test"), tmp_path / "cache")
    assert len(found) == 3
    record = found[0]
    assert isinstance(record, Record)
    assert record.text_or_messages == "0 + 1"


def test_a_data_set_of_the_hub_that_cannot_be_fetched_is_one_line(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"hf://openai/gsm8k: not in the cache, and the hub cannot be reached; "):
        open_dataset(PromptDataset(path="hf://openai/gsm8k", config="main"), tmp_path)


def test_prompts_that_are_too_long_are_counted_with_the_longest():
    bad = [BadRecord(i, f"line {i}", "…", tokens) for i, tokens in enumerate((12, 16, 9))]
    assert str(too_many("spec.data.prompts.file /a", bad, 40)) == (
        "spec.data.prompts.file /a: 3 of 40 prompts are longer than spec.data.maxPromptTokens; the longest has 16. "
        "Set it to 16 or more, or set spec.data.onInvalidRecord: Skip to leave them out"
    )
    assert "1 bad record: line 0: …" in str(too_many("a", bad[:1], 40))
    mixed = [*bad, BadRecord(3, "line 3", "not JSON")]
    assert "4 bad records: line 0: …; " in str(too_many("a", mixed, 40))
