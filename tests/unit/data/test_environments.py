"""Which environment a record names, and the record as a runner receives it."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec import DataSpec
from rljob_runtime.data import DataError, JobPrompts, Prompt, open_prompts
from rljob_runtime.data.environments import json_value, record_of
from rljob_runtime.models.toy import toy_tokenizer
from rljob_runtime.protocols.trajectory import PromptKey

NAMES = ("calc", "swe")
GOOD = {"question": "2+2=", "answer": 4, "level": 1}


def opened(tmp_path: Path, *records: dict[str, Any], names: tuple[str, ...] = NAMES, **settings: Any) -> JobPrompts:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    source = {"file": {"path": str(path), "promptField": "question"}}
    data = DataSpec.model_validate({"prompts": source, "chatTemplate": False, **settings})
    toy_tokenizer().save_pretrained(tmp_path / "made")
    files = {each.name: each.read_bytes() for each in (tmp_path / "made").iterdir()}
    files["config.json"] = json.dumps({"model_type": "llama", "eos_token_id": 1}).encode()
    return open_prompts(data, files, tmp_path / "scratch", environments=names)


def test_a_record_names_its_environment_or_has_the_first_one(tmp_path: Path) -> None:
    prompts = opened(tmp_path, GOOD, {**GOOD, "environment": "swe"}, {**GOOD, "environment": None})
    assert [prompts.environment(PromptKey(0, index)) for index in range(3)] == ["calc", "swe", "calc"]


@pytest.mark.parametrize(("named", "shown"), [("sew", "'sew'"), (7, "7"), (["calc"], r"\['calc'\]")])
def test_an_unknown_environment_is_a_bad_record_with_file_and_line(tmp_path: Path, named: Any, shown: str) -> None:
    right = "a name in spec.environments would be right: calc, swe"
    with pytest.raises(DataError, match=rf"p\.jsonl: 1 bad record: line 2: field 'environment' is {shown}; {right}"):
        opened(tmp_path, GOOD, {**GOOD, "environment": named})
    skipping = opened(tmp_path, GOOD, {**GOOD, "environment": named}, onInvalidRecord="Skip")
    assert skipping.skipped == 1
    assert skipping.environment(PromptKey(0, 0)) == "calc"


def test_without_environments_the_field_is_as_any_other(tmp_path: Path) -> None:
    prompts = opened(tmp_path, {**GOOD, "environment": "laboratory"}, names=())
    assert prompts.prompt(PromptKey(0, 0)).metadata["environment"] == "laboratory"


def test_a_runner_receives_all_fields_with_prompt_and_answer_renamed(tmp_path: Path) -> None:
    prompts = opened(tmp_path, {**GOOD, "environment": "calc", "tests": [{"input": None}]})
    record = prompts.record(PromptKey(0, 0))
    assert record == {
        "prompt": "2+2=",
        "answer": "4",
        "level": 1,
        "environment": "calc",
        "tests": [{"input": None}],
    }


def test_what_has_no_form_in_json_is_text() -> None:
    metadata = {"when": date(2026, 1, 2), "shape": (2, 3), "loss": float("inf"), "by": {1: b"x"}}
    prompt = Prompt(0, ({"role": "user", "content": "Hi"},), (1,), 2.5, metadata)
    record = record_of(prompt)
    assert json.loads(json.dumps(record, allow_nan=False)) == {
        "prompt": [{"role": "user", "content": "Hi"}],
        "answer": 2.5,
        "when": "2026-01-02",
        "shape": [2, 3],
        "loss": None,
        "by": {"1": "b'x'"},
    }
    assert json_value(True) is True
