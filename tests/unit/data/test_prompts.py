"""Prompts: bad input names its place, and a cursor of two integers draws every record once an epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as budget
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rljob_api.spec.training import DataSpec
from rljob_runtime.data import BadRecord, DataError, Prompt, PromptSet, open_prompts
from rljob_runtime.data.prompts import PromptRules, open_source
from rljob_runtime.data.rows import ROLES
from rljob_runtime.protocols.trajectory import Cursor, PromptKey
from tests.support.examples import examples

CACHE = Path("/nowhere")
"""Of downloads; nothing here downloads."""
GOOD = {"prompt": "2+2", "answer": "4"}
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character."""
    characters = {chr(code): code - 32 for code in range(32, 127)}
    backend = Tokenizer(models.WordLevel(characters | {"?!": 95, "end": 96}, unk_token="?!"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    made = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?!", eos_token="end")
    made.chat_template = TEMPLATE
    return made


def spec(prompts: dict[str, Any], **settings: Any) -> DataSpec:
    return DataSpec.model_validate({"prompts": prompts, "chat_template": False, **settings})


def lines(path: Path, *rows: object) -> Path:
    raw = b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)
    path.write_bytes(raw)
    return path


def open_file(path: Path, tokenizer: PreTrainedTokenizerFast, **settings: Any) -> PromptSet:
    data = spec({"file": {"path": str(path)}}, **settings)
    return PromptSet(open_source(data.prompts, data.seed, CACHE), PromptRules(data, tokenizer))


BAD_LINES = {
    "not UTF-8": (b'{"prompt": "\xff"}', "line 2: not UTF-8: 0xff at byte 56 of the file"),
    "not JSON": (b'{"prompt": }', "line 2: not JSON: Expecting value at column 12"),
    "cut off": (b'{"prompt": "a", "answer"', "line 2: not JSON"),
    "a list": ([1], "line 2: a list where a JSON object would be right"),
    "a number": (7, "line 2: a number where a JSON object would be right"),
    "no prompt": ({"answer": "4", "question": "2+2"}, "field 'prompt' is missing .fields: answer, question."),
    "null prompt": ({"prompt": None, "answer": "4"}, "field 'prompt' is missing"),
    "no answer": ({"prompt": "2+2"}, "field 'answer' is missing"),
    "empty prompt": ({"prompt": "  ", "answer": "4"}, "field 'prompt' is empty"),
    "prompt of a kind": ({"prompt": 5, "answer": "4"}, "field 'prompt' is a number"),
    "answer of a kind": ({"prompt": "a", "answer": {"x": 1}}, "field 'answer' is an object"),
    "answer a list": ({"prompt": "a", "answer": ["4"]}, "field 'answer' is a list; text or a number would be right"),
    "null answer": ({"prompt": "a", "answer": None}, "field 'answer' is missing .fields: prompt."),
    "blank answer": ({"prompt": "a", "answer": " \n"}, "field 'answer' is blank"),
    "answer a gap": (b'{"prompt": "a", "answer": NaN}', "field 'answer' is missing .fields: prompt."),
    "endless answer": (b'{"prompt": "a", "answer": Infinity}', "field 'answer' is inf; a finite number would be right"),
    "half a character in a prompt": (
        rb'{"prompt": "a\ud83d", "answer": "4"}',
        "field 'prompt' has half .* U.D83D; both",
    ),
    "half a character in an answer": (rb'{"prompt": "a", "answer": "\uDC00"}', "field 'answer' has half .* U.DC00"),
    "half a character elsewhere": (
        rb'{"prompt": "a", "answer": "4", "x": [{"y": "\ud800"}]}',
        "field 'x' has half of a surrogate pair, U.D800",
    ),
    "half a character in a name": (rb'{"prompt": "a", "answer": "4", "\ud800": 1}', r"field '\\ud800' has half"),
    "an integer without end": (b'{"prompt": "a", "answer": %s}' % (b"9" * 5000), "a number that cannot be read .*4300"),
    "answer a truth value": ({"prompt": "a", "answer": True}, "field 'answer' is a truth value"),
    "no messages": ({"prompt": [], "answer": "4"}, "no messages"),
    "message of a kind": ({"prompt": ["a"], "answer": "4"}, "message 0 is no object with role and content"),
    "message without content": ({"prompt": [{"role": "user"}], "answer": "4"}, "message 0 is no object with role"),
    "unknown role": ({"prompt": [{"role": "king", "content": "a"}], "answer": "4"}, "message 0 has role 'king'"),
    "messages without template": ({"prompt": [{"role": "user", "content": "a"}], "answer": "4"}, "chatTemplate: true"),
    "too long": ({"prompt": "x" * 21, "answer": "4"}, "line 2: 21 tokens; spec.data.maxPromptTokens is 20"),
    "too deep": (b'{"prompt": ' + b"[" * 100_000, "line 2: not JSON"),
}


@pytest.mark.parametrize(("bad", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_line_fails_with_its_place_or_is_skipped_and_counted(tmp_path, tokenizer, bad, message) -> None:
    path = lines(tmp_path / "p.jsonl", {**GOOD, "more": 1}, bad, GOOD)
    with pytest.raises(DataError, match=message) as raised:
        open_file(path, tokenizer, max_prompt_tokens=20)
    assert "p.jsonl: 1 bad record: line 2: " in str(raised.value)
    assert "onInvalidRecord: Skip" in str(raised.value)
    prompts = open_file(path, tokenizer, max_prompt_tokens=20, on_invalid_record="Skip")
    assert prompts.skipped == 1
    assert [record.index for record in prompts.skipped_records] == [1]
    drawn, _ = prompts.draw(Cursor(), 4)
    assert sorted(drawn) == [PromptKey(0, 0), PromptKey(0, 2), PromptKey(1, 0), PromptKey(1, 2)]
    with pytest.raises(DataError):
        prompts.prompt(PromptKey(0, 1))


WRITTEN = {
    b"4": "4",
    b"-0": "0",
    b"0.00001": "0.00001",
    b"1e-05": "1e-05",
    b"1.2e22": "1.2e22",
    b"72.0": "72.0",
    b"0.1000000000000000055511151231257827": "0.1000000000000000055511151231257827",
    b'"\\ud83d\\ude00"': "\N{GRINNING FACE}",
    b'""': "",
}


@pytest.mark.parametrize("raw", WRITTEN)
def test_an_answer_is_what_the_file_says(tmp_path: Path, tokenizer: PreTrainedTokenizerFast, raw: bytes) -> None:
    path = lines(tmp_path / "p.jsonl", b'{"prompt": "a", "x": 1.50, "answer": %s}' % raw)
    prompt = open_file(path, tokenizer).prompt(PromptKey(0, 0))
    assert (prompt.answer, prompt.metadata) == (WRITTEN[raw], {"x": 1.5})


def test_all_bad_lines_are_counted_and_the_first_are_listed(tmp_path, tokenizer) -> None:
    path = lines(tmp_path / "p.jsonl", *([GOOD] + [b"{"] * 13))
    with pytest.raises(DataError, match=r"13 bad records: line 2: .*; line 11: .*; and 3 more"):
        open_file(path, tokenizer)


def test_files_that_cannot_be_used(tmp_path, tokenizer) -> None:
    cases = {
        tmp_path / "absent.jsonl": "absent.jsonl does not exist",
        tmp_path: "is no file; a JSONL, JSON, CSV, Parquet or Arrow file would be right",
        lines(tmp_path / "empty.jsonl"): "empty.jsonl is empty",
        lines(tmp_path / "blank.jsonl", b"", b"  "): "blank.jsonl is empty",
    }
    for path, message in cases.items():
        with pytest.raises(DataError, match=message):
            open_file(path, tokenizer)
    path = lines(tmp_path / "bad.jsonl", b"{", b"[")
    with pytest.raises(DataError, match=r"not one of 2 records can be used; line 1: not JSON"):
        open_file(path, tokenizer, on_invalid_record="Skip")


def test_records_keep_what_they_came_with(tmp_path, tokenizer) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    path = lines(
        tmp_path / "p.jsonl",
        b"\xef\xbb\xbf" + json.dumps({**GOOD, "level": 3}).encode(),
        b"",
        {**GOOD, "prompt": messages, "answer": 7},
    )
    prompts = open_file(path, tokenizer, chat_template=True, system_prompt="Hi")
    plain, chat = prompts.prompt(PromptKey(0, 0)), prompts.prompt(PromptKey(0, 1))
    assert (plain.text_or_messages, plain.answer, plain.metadata, plain.question) == ("2+2", "4", {"level": 3}, "2+2")
    assert prompts.decode(plain.token_ids).replace(" ", "") == "<system>Hi<user>2+2>"
    assert (chat.text_or_messages, chat.answer, chat.question) == (tuple(messages), "7", "Q")
    assert prompts.decode(chat.token_ids).replace(" ", "") == "<system>Hi<system>S<user>Q>"


def test_templates_are_asked_for_only_where_there_are_some(tmp_path, tokenizer) -> None:
    path = lines(tmp_path / "p.jsonl", GOOD)
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(DataError, match=r"no chat template; set spec.data.chatTemplate: false"):
        open_file(path, bare, chat_template=True)
    with pytest.raises(DataError, match="systemPrompt needs"):
        open_file(path, bare, system_prompt="Hi")
    assert len(open_file(path, bare).prompt(PromptKey(0, 0)).token_ids) == 3


NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + TEMPLATE
)


def test_a_template_that_refuses_a_role_names_the_record(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2"}]
    path = lines(tmp_path / "p.jsonl", GOOD, {**GOOD, "prompt": messages})
    strict = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    strict.chat_template = NO_SYSTEM
    refusal = "line 2: the model's chat template refuses it: System role not supported"
    with pytest.raises(DataError, match=refusal):
        open_file(path, strict, chat_template=True)
    assert open_file(path, strict, chat_template=True, on_invalid_record="Skip").skipped == 1
    advice = "spec.data.systemPrompt: the model's chat template takes none .System role not supported.; leave it out"
    for on_invalid_record in ("Fail", "Skip"):
        with pytest.raises(DataError, match=advice):
            open_file(path, strict, chat_template=True, on_invalid_record=on_invalid_record, system_prompt="Be brief.")


PIECES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=()), max_size=8),
    st.just("ENDLESS"),
)
VALUES = st.recursive(
    PIECES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(st.fixed_dictionaries({}, optional={"role": PIECES | st.sampled_from(ROLES), "content": PIECES}))
ROWS = st.fixed_dictionaries({}, optional={"prompt": VALUES | MESSAGES, "answer": VALUES, "x": VALUES}) | VALUES


def written(row: object) -> bytes:
    """As JSON, with an integer that Python would not write."""
    return json.dumps(row).encode().replace(b'"ENDLESS"', b"9" * 5000)


@budget(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=ROWS.map(written) | st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")))
@example(row=b'{"prompt": "a", "answer": ' + b"[" * 50_000)
def test_whatever_a_line_holds_it_is_a_record_or_a_bad_one_with_its_line(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, row: bytes
) -> None:
    path = lines(tmp_path / "p.jsonl", GOOD, row)
    skipping = open_file(path, tokenizer, chat_template=True, on_invalid_record="Skip")
    if not row.strip():
        assert skipping.skipped == 0
    elif skipping.skipped:
        with pytest.raises(DataError, match="1 bad record: line 2: "):
            open_file(path, tokenizer, chat_template=True)
    else:
        prompt = skipping.prompt(PromptKey(0, 1))
        assert isinstance(prompt.answer, str)
        prompt.question.encode()
        prompt.answer.encode()


def test_what_no_reward_can_use_is_a_bad_record(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    path = lines(tmp_path / "p.jsonl", GOOD, {**GOOD, "answer": "?"})
    data = spec({"file": {"path": str(path)}})

    def problem(prompt: Prompt) -> str | None:
        return "reward math cannot score it: '?' says nothing; repair it" if prompt.answer == "?" else None

    with pytest.raises(DataError, match=r"line 2: reward math cannot score it: '.' says nothing; repair it\."):
        PromptSet(open_source(data.prompts, data.seed, CACHE), PromptRules(data, tokenizer, problem=problem))


def test_a_data_set_on_disk(tmp_path, tokenizer) -> None:
    rows = datasets.Dataset.from_list([{"q": f"{i}+1", "a": i + 1, "note": "n"} for i in range(5)])
    datasets.DatasetDict({"train": rows, "other": rows}).save_to_disk(tmp_path / "set")
    (tmp_path / "empty").mkdir()

    def opened(**settings: Any) -> PromptSet:
        source = {"path": str(tmp_path / "set"), "prompt_field": "q", "answer_field": "a", **settings}
        data = spec({"dataset": source})
        return PromptSet(open_source(data.prompts, data.seed, tmp_path / "cache"), PromptRules(data, tokenizer))

    prompt = opened().prompt(PromptKey(0, 3))
    assert (prompt.text_or_messages, prompt.answer, prompt.metadata) == ("3+1", "4", {"note": "n"})
    cases: dict[str, dict[str, Any]] = {
        "does not exist": {"path": str(tmp_path / "absent")},
        "is no data set saved by save_to_disk, and no folder of data files": {"path": str(tmp_path / "empty")},
        "which keeps no config; leave config out": {"config": "main"},
        r"has no split 'test'; it has train, other": {"split": "test"},
        "has no column 'question'; it has q, a, note": {"prompt_field": "question"},
    }
    for message, settings in cases.items():
        with pytest.raises(DataError, match=message):
            opened(**settings)


def gym(tokenizer: PreTrainedTokenizerFast, task: str = "chain_sum", **settings: Any) -> PromptSet:
    fields = {key: settings.pop(key) for key in ("size", "config") if key in settings}
    data = spec({"reasoning_gym": {"task": task, **fields}}, **settings)
    return PromptSet(open_source(data.prompts, data.seed, CACHE), PromptRules(data, tokenizer))


def test_a_reasoning_gym_task(tokenizer) -> None:
    huge = gym(tokenizer, size=100_000_000, config={"min_terms": 2, "max_terms": 2})
    drawn, cursor = huge.draw(Cursor(), 3)
    assert cursor == Cursor(0, 3)
    prompts = [huge.prompt(key) for key in drawn]
    again = gym(tokenizer, size=100_000_000, config={"min_terms": 2, "max_terms": 2})
    assert [again.prompt(key) for key in drawn] == prompts
    assert prompts[0].metadata["source_dataset"] == "chain_sum"
    assert [gym(tokenizer, size=100_000_000, seed=1).prompt(key) for key in drawn] != prompts
    for message, settings in {
        "Dataset 'nothing' not registered": {"task": "nothing"},
        "does not fit the task": {"config": {"min_terms": 9, "max_terms": 2}},
        "does not fit": {"config": {"colour": "red"}},
    }.items():
        with pytest.raises(DataError, match=message):
            gym(tokenizer, **settings)


def test_generated_prompts_that_are_too_long_are_found_when_drawn(tokenizer) -> None:
    short = gym(tokenizer, size=20, max_prompt_tokens=5)
    with pytest.raises(DataError, match=r"record \d+: \d+ tokens; spec.data.maxPromptTokens is 5"):
        short.draw(Cursor(), 1)
    with pytest.raises(DataError, match="not one record can be used"):
        gym(tokenizer, size=20, max_prompt_tokens=5, on_invalid_record="Skip").draw(Cursor(), 1)


def test_open_prompts_takes_the_models_own_tokenizer(tmp_path, tokenizer) -> None:
    tokenizer.save_pretrained(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    files["config.json"] = json.dumps({"model_type": "llama", "eos_token_id": [96, 5]}).encode()
    path = lines(tmp_path / "p.jsonl", GOOD)
    prompts = open_prompts(spec({"file": {"path": str(path)}}), files, tmp_path / "scratch")
    assert prompts.stop_token_ids == (5, 96)
    stopped = spec({"file": {"path": str(path)}}, stop_strings=["?!", "4"])
    assert open_prompts(stopped, files, tmp_path / "scratch").stop_token_ids == (5, 95, 96), "a special token"
    assert len(prompts.prompt(PromptKey(0, 0)).token_ids) == 3


class Numbers:
    """A source of numbered records, some of them bad."""

    name, checked_ahead = "numbers", False

    def __init__(self, size: int, bad: frozenset[int]):
        self.size, self.bad = size, bad

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        from rljob_runtime.data.records import Record

        return BadRecord(index, f"record {index}", "bad") if index in self.bad else Record(index, "", f"{index}", "")


@pytest.mark.parametrize("size", [1, 2, 5, 9])
@pytest.mark.parametrize("seed", range(5))
def test_one_good_record_is_enough_wherever_an_epoch_has_it(tokenizer, size, seed) -> None:
    data = spec({"file": {"path": "/unused"}}, on_invalid_record="Skip", seed=seed)
    drawn, _ = PromptSet(Numbers(size, set(range(size - 1))), PromptRules(data, tokenizer)).draw(Cursor(), 40)
    assert [(key.epoch, key.index) for key in drawn] == [(epoch, size - 1) for epoch in range(40)]
    with pytest.raises(DataError, match="not one record can be used; record"):
        PromptSet(Numbers(size, set(range(size))), PromptRules(data, tokenizer)).draw(Cursor(), 1)


@given(
    size=st.integers(1, 40),
    bad=st.frozensets(st.integers(0, 39)),
    counts=st.lists(st.integers(0, 30), max_size=6),
    seed=st.integers(0, 5),
)
@example(size=5, bad=frozenset({0, 1, 2, 3}), counts=[2], seed=0)
def test_draws_in_any_portions_give_each_good_record_once_an_epoch(tokenizer, size, bad, counts, seed) -> None:
    good = set(range(size)) - bad
    if not good:
        return
    data = spec({"file": {"path": "/unused"}}, on_invalid_record="Skip", seed=seed)
    prompts = PromptSet(Numbers(size, bad), PromptRules(data, tokenizer))
    cursor, drawn = Cursor(), []
    for count in counts:
        keys, cursor = PromptSet(Numbers(size, bad), PromptRules(data, tokenizer)).draw(
            cursor, count
        )  # state is the cursor alone
        assert len(keys) == count
        drawn += keys
    complete, after = prompts.draw(Cursor(), sum(counts))
    assert drawn == list(complete)
    assert len(set(drawn)) == len(drawn)
    for epoch in range(cursor.epoch):
        assert {key.index for key in drawn if key.epoch == epoch} == good
    assert (after.epoch, after.position) == (cursor.epoch, cursor.position)
