"""The held-out split, and the prompts of evaluations: training never draws one, and they are the same each time."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.training import DataSpec, Prompts
from rljob_runtime.data import BadRecord, DataError, EvaluationData, JobPrompts, PromptSet, open_prompts
from rljob_runtime.data.evaluation_prompts import EvaluationPrompts, OnAccess, Part, in_seeded_order
from rljob_runtime.data.held_out import HeldOut
from rljob_runtime.data.order import DrawOrder
from rljob_runtime.data.prompt_cache import PromptCache
from rljob_runtime.data.prompts import PromptRules
from rljob_runtime.data.rows import Record
from rljob_runtime.models.toy import toy_tokenizer
from rljob_runtime.protocols.trajectory import Cursor, PromptKey
from rljob_runtime.scheduling.shares import Shares

FRACTIONS = st.decimals("0.001", "0.999", places=3).map(float)
TOKENIZER = toy_tokenizer()


class Sums:
    """Records of different texts. `bad` cannot be used."""

    name, checked_ahead = "sums", True

    def __init__(self, size: int, bad: frozenset[int] = frozenset()) -> None:
        self.size, self.bad = size, bad

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Record | BadRecord:
        if index in self.bad:
            return BadRecord(index, f"record {index}", "bad")
        return Record(index, f"record {index}", f"{index}+1=", str(index + 1))


def data(prompts: dict[str, Any] | None = None, **settings: Any) -> DataSpec:
    prompts = prompts or {"file": {"path": "/unused"}}
    return DataSpec.model_validate({"prompts": prompts, "chat_template": False, **settings})


def drawn(prompts: PromptSet | JobPrompts, count: int) -> list[int]:
    return [key.index for key in prompts.draw(Cursor(), count)[0]]


@given(size=st.integers(1, 500), seed=st.integers(0, 2**31), epoch=st.integers(-1, 1000), place=st.integers(0, 499))
def test_a_position_is_the_inverse_of_an_index(size: int, seed: int, epoch: int, place: int) -> None:
    order = DrawOrder(size, seed)
    assert order.position(epoch, order.index(epoch, place % size)) == place % size
    for outside in (-1, size):
        with pytest.raises(IndexError):
            order.position(epoch, outside)


@given(size=st.integers(2, 300), fraction=FRACTIONS, seed=st.integers(0, 9))
def test_a_split_has_its_fraction_and_leaves_both_parts_a_record(size: int, fraction: float, seed: int) -> None:
    held = HeldOut("sums", size, fraction, seed)
    listed = list(held)
    assert len(set(listed)) == len(listed) == len(held)
    assert {index for index in range(size) if index in held} == set(listed)
    assert 1 <= len(held) < size
    exact = size * Fraction(str(fraction))
    assert abs(len(held) - exact) <= Fraction(1, 2) or len(held) in (1, size - 1)


@given(size=st.integers(2, 300), fractions=st.tuples(FRACTIONS, FRACTIONS), seed=st.integers(0, 9))
def test_a_larger_fraction_holds_out_what_a_smaller_one_does(size: int, fractions, seed: int) -> None:
    small, large = (list(HeldOut("sums", size, fraction, seed)) for fraction in sorted(fractions))
    assert large[: len(small)] == small


def test_splits_depend_on_the_seed() -> None:
    assert len({tuple(HeldOut("sums", 100, 0.05, seed)) for seed in range(5)}) == 5


def test_one_record_cannot_be_split() -> None:
    with pytest.raises(DataError, match=r"sums has 1 record; spec.data.heldOut needs two"):
        HeldOut("sums", 1, 0.5, 0)


@given(size=st.integers(2, 60), fraction=FRACTIONS, bad=st.frozensets(st.integers(0, 59)), seed=st.integers(0, 4))
def test_training_draws_every_good_record_but_the_held_out_ones(size: int, fraction: float, bad, seed: int) -> None:
    held = HeldOut("sums", size, fraction, seed)
    good = set(range(size)) - bad - set(held)
    spec = data(on_invalid_record="Skip", seed=seed)
    if not good:
        with pytest.raises(DataError, match="records can be used"):
            PromptSet(Sums(size, bad), PromptRules(spec, TOKENIZER), held_out=held)
        return
    prompts = PromptSet(Sums(size, bad), PromptRules(spec, TOKENIZER), held_out=held)
    assert sorted(drawn(prompts, 2 * len(good))) == sorted([*good, *good])
    assert prompts.skipped == len({index for index in bad if index < size} - set(held))
    for index in held:
        with pytest.raises(DataError, match="is held out for evaluation"):
            prompts.prompt(PromptKey(0, index))


@given(size=st.integers(1, 60), most=st.integers(1, 70), bad=st.frozensets(st.integers(0, 59)), seed=st.integers(0, 4))
def test_an_evaluation_takes_the_first_good_records_of_one_order(size: int, most: int, bad, seed: int) -> None:
    def chosen(most: int) -> EvaluationPrompts:
        prompts = PromptSet(
            OnAccess(Sums(size, bad)), PromptRules(data(on_invalid_record="Skip", seed=seed), TOKENIZER)
        )
        part = Part(prompts, in_seeded_order(size, seed))
        return EvaluationPrompts([part], [0] * most, "spec.evaluation[0] sums")

    good = set(range(size)) - bad
    if not good:
        with pytest.raises(DataError, match=r"spec.evaluation\[0\] sums: not one of \d+ records can be used; record"):
            chosen(most)
        return
    everything, some = chosen(size), chosen(most)
    assert set(everything.records) == good
    assert some.records == everything.records[:most]
    assert [some.prompt(index).index for index in some.records] == list(some.records)


def test_a_bad_evaluation_record_fails_the_job_unless_it_may_be_skipped() -> None:
    prompts = PromptSet(OnAccess(Sums(3, frozenset({1}))), PromptRules(data(), TOKENIZER))
    with pytest.raises(DataError, match="sums: 1 bad record: record 1: bad"):
        EvaluationPrompts([Part(prompts, range(3))], [0] * 3, "spec.evaluation[0] sums")


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("model")
    TOKENIZER.save_pretrained(folder)
    return {
        "config.json": json.dumps({"model_type": "llama", "eos_token_id": 1}).encode(),
        **{path.name: path.read_bytes() for path in folder.iterdir()},
    }


def rows(path: Path, texts: list[str]) -> dict[str, Any]:
    path.write_text("".join(json.dumps({"prompt": text, "answer": "1"}) + "\n" for text in texts))
    return {"file": {"path": str(path)}}


def own(path: Path, texts: list[str], most: int = 256, name: str = "own") -> EvaluationData:
    return EvaluationData("spec.evaluation[0]", name, Prompts.model_validate(rows(path, texts)), most)


def test_sources_and_evaluations_share_the_memory_of_one_cache(
    tmp_path: Path, model_files, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PromptCache] = []
    create = PromptCache.__init__

    def recorded(cache: PromptCache, most: int = 4000) -> None:
        made.append(cache)
        create(cache, most)

    monkeypatch.setattr(PromptCache, "__init__", recorded)
    sources = [
        {
            "name": name,
            "weight": 1,
            "prompts": rows(tmp_path / f"{name}.jsonl", [f"{index}{sign}2=" for index in range(20)]),
        }
        for name, sign in (("plus", "+"), ("minus", "-"))
    ]
    spec = DataSpec.model_validate({"sources": sources, "chatTemplate": False})
    opened = open_prompts(spec, model_files, tmp_path / "s", evaluations=[own(tmp_path / "e.jsonl", ["0*2=", "1*2="])])
    for source, sign in (("plus", "+"), ("minus", "-"), ("evaluation:own", "*")):
        assert opened.prompt(PromptKey(0, 1, source)).question == f"1{sign}2="
        assert 0 < sum(cache.bytes for cache in made) <= 4000
    assert len(made) == 1


HELD = EvaluationData("spec.evaluation[1]", "held", None, 256)


def test_a_job_has_prompts_of_training_and_of_evaluations(tmp_path: Path, model_files) -> None:
    training = rows(tmp_path / "t.jsonl", [f"{index}+2=" for index in range(20)])
    evaluations = [own(tmp_path / "e.jsonl", [f"{index}*2=" for index in range(9)], most=4), HELD]
    opened = open_prompts(data(training), model_files, tmp_path / "s", held_out=0.25, evaluations=evaluations)
    held = opened.evaluation_prompts("held")
    assert len(held) == 5
    assert sorted([*held, *drawn(opened, 15)]) == list(range(20))
    assert len(opened.evaluation_prompts("own")) == 4
    for name, text in (("own", "{}*2="), ("held", "{}+2=")):
        for index in opened.evaluation_prompts(name):
            key = PromptKey(7, index, f"evaluation:{name}")
            assert opened.prompt(key).question == text.format(index)
            assert opened.messages(key) == ({"role": "user", "content": text.format(index)},)
    again = open_prompts(data(training), model_files, tmp_path / "s", held_out=0.25, evaluations=evaluations)
    assert [again.evaluation_prompts(name) for name in ("own", "held")] == [
        opened.evaluation_prompts(name) for name in ("own", "held")
    ]
    assert opened.overlaps == {}
    with pytest.raises(DataError, match="there is no evaluation 'other'"):
        opened.evaluation_prompts("other")


def of_sources(tmp_path: Path, sizes: dict[str, int], weights: dict[str, float]) -> DataSpec:
    """Each source has records of its own sign."""
    sources = [
        {
            "name": name,
            "weight": weights[name],
            "prompts": rows(tmp_path / f"{name}.jsonl", [f"{index}{sign}2=" for index in range(size)]),
        }
        for (name, size), sign in zip(sizes.items(), "+-*", strict=False)
    ]
    return DataSpec.model_validate({"sources": sources, "chatTemplate": False})


def held_of(drawn_from: tuple[str, ...], own_rewards: bool = False) -> EvaluationData:
    return EvaluationData("spec.evaluation[1]", "held", None, len(drawn_from), drawn_from, own_rewards)


def sequence(weights: dict[str, float], number: int) -> tuple[str, ...]:
    return Shares.of(weights).sequence({}, number)


@pytest.mark.parametrize("own_rewards", [False, True])
def test_held_out_records_of_several_sources_have_their_shares(tmp_path: Path, model_files, own_rewards: bool) -> None:
    sizes, weights = {"plus": 40, "minus": 20}, {"plus": 3.0, "minus": 1.0}
    spec = of_sources(tmp_path, sizes, weights)
    evaluation = held_of(sequence(weights, 8), own_rewards)
    opened = open_prompts(spec, model_files, tmp_path / "s", held_out=0.25, evaluations=[evaluation])
    numbers = opened.evaluation_prompts("held")
    asked = [opened.prompt(PromptKey(3, number, "evaluation:held")) for number in numbers]
    assert len(set(numbers)) == 8
    assert Counter("+" if "+" in one.question else "-" for one in asked) == {"+": 6, "-": 2}
    assert {one.source for one in asked} == ({"evaluation:held"} if own_rewards else {"plus", "minus"})
    messages = [opened.messages(PromptKey(3, number, "evaluation:held"))[0]["content"] for number in numbers]
    assert messages == [one.question for one in asked]
    # What is held out of each source is never drawn from it, and the rest is.
    for name, size in sizes.items():
        keys, _ = opened.draw(Cursor(), size, name)
        drawn_of = {opened.prompt(key).question for key in keys}
        assert len(drawn_of) == size - size // 4
        assert drawn_of.isdisjoint(one.question for one in asked)
    fewer = open_prompts(
        spec, model_files, tmp_path / "t", held_out=0.25, evaluations=[held_of(sequence(weights, 4), own_rewards)]
    )
    assert fewer.evaluation_prompts("held") == numbers[:4]


def test_held_out_shares_end_with_the_first_exhausted_source(tmp_path: Path, model_files) -> None:
    weights = {"plus": 1.0, "minus": 1.0}
    spec = of_sources(tmp_path, {"plus": 40, "minus": 8}, weights)
    evaluation = held_of(sequence(weights, 30))
    opened = open_prompts(spec, model_files, tmp_path / "s", held_out=0.25, evaluations=[evaluation])
    assert len(opened.evaluation_prompts("held")) == 5, "two of each, and one more of the first"


def test_held_out_records_of_one_source(tmp_path: Path, model_files) -> None:
    spec = of_sources(tmp_path, {"plus": 40, "minus": 8}, {"plus": 1.0, "minus": 1.0})
    evaluation = held_of(("minus",) * 30)
    opened = open_prompts(spec, model_files, tmp_path / "s", held_out=0.25, evaluations=[evaluation])
    numbers = opened.evaluation_prompts("held")
    assert [opened.prompt(PromptKey(0, one, "evaluation:held")).source for one in numbers] == ["minus"] * 2


def test_a_source_that_cannot_be_split_is_named(tmp_path: Path, model_files) -> None:
    spec = of_sources(tmp_path, {"plus": 40, "minus": 1}, {"plus": 1.0, "minus": 1.0})
    with pytest.raises(DataError, match=r"minus.jsonl has 1 record; spec.data.heldOut needs two"):
        open_prompts(spec, model_files, tmp_path / "s", held_out=0.25)


def test_prompts_that_training_has_too_are_counted(tmp_path: Path, model_files) -> None:
    training = rows(tmp_path / "t.jsonl", ["1+1=", "1+2=", "1+3=", "1+1="])
    evaluations = [
        own(tmp_path / "e.jsonl", ["1+1=", "1+3=", "9+9=", "1+1="], name="leaks"),
        own(tmp_path / "f.jsonl", ["9+8="], name="clean"),
    ]
    opened = open_prompts(data(training), model_files, tmp_path / "s", evaluations=evaluations)
    assert opened.overlaps == {"leaks": 3}


def test_a_held_out_record_overlaps_with_a_duplicate_not_with_itself(tmp_path: Path, model_files) -> None:
    texts = [f"{index}+2=" for index in range(10)]
    once = rows(tmp_path / "t.jsonl", texts)
    opened = open_prompts(data(once), model_files, tmp_path / "s", held_out=0.3, evaluations=[HELD])
    assert opened.overlaps == {}
    double = rows(tmp_path / "u.jsonl", ["7+7="] * 10)
    opened = open_prompts(data(double), model_files, tmp_path / "s", held_out=0.3, evaluations=[HELD])
    assert opened.overlaps == {"held": 3}


def test_an_evaluations_own_source_is_named_by_its_place(tmp_path: Path, model_files) -> None:
    training = rows(tmp_path / "t.jsonl", ["1+1="])
    absent = Prompts.model_validate({"file": {"path": "/absent.jsonl"}})
    evaluation = EvaluationData("spec.evaluation[2]", "own", absent, 9)
    with pytest.raises(DataError, match=r"^spec.evaluation\[2\].prompts.file /absent.jsonl does not exist"):
        open_prompts(data(training), model_files, tmp_path / "s", evaluations=[evaluation])
    with pytest.raises(DataError, match=r"^spec.evaluation\[1\].prompts.heldOut needs spec.data.heldOut"):
        open_prompts(data(training), model_files, tmp_path / "s", evaluations=[HELD])


def test_a_generator_makes_other_prompts_for_an_evaluation(tmp_path: Path, model_files) -> None:
    task = {"reasoning_gym": {"task": "basic_arithmetic", "size": 40, "config": {"min_digits": 6, "max_digits": 6}}}
    evaluation = EvaluationData("spec.evaluation[0]", "own", Prompts.model_validate(task), 40)
    spec = data(task, on_invalid_record="Skip")
    opened = open_prompts(spec, model_files, tmp_path / "s", evaluations=[evaluation])
    keys, _ = opened.draw(Cursor(), 40)
    asked = {opened.prompt(PromptKey(0, index, "evaluation:own")).question for index in range(40)}
    assert asked.isdisjoint(opened.prompt(key).question for key in keys)
