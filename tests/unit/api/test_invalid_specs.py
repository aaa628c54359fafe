"""Every bad spec is refused with the field's path, the value found, and what would be right."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import pytest
import yaml

from rljob_api import FieldError, InvalidSpec, load
from rljob_api.errors import show
from tests.support.api.invalid_specs import CASES, Case
from tests.support.api.jobs import MINIMAL, REMOVE, job

CONFIG = "spec.data.prompts.reasoningGym.config"


def errors_of(source: Any) -> list[FieldError]:
    with pytest.raises(InvalidSpec) as caught:
        load(source)
    return caught.value.errors


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_mistake_is_told_with_path_value_and_advice(case: Case) -> None:
    errors = errors_of(job(case.edits))
    found = {error.path: error for error in errors}
    assert case.path in found, [str(error) for error in errors]
    told = next(error for error in errors if error.path == case.path and case.advice in error.message)
    assert told.value == case.shown or told.value is case.shown
    assert str(told).startswith(f"{case.path}: {show(told.value)} ")


def test_a_mixture_whose_weights_are_0_is_refused_at_each_source() -> None:
    words = {"file": {"path": "/words.jsonl"}}
    sources = [{"name": name, "weight": 0, "prompts": words} for name in ("a", "b")]
    edits = {"spec.data.prompts": REMOVE, "spec.data.sources": sources}
    assert [str(error) for error in errors_of(job(edits)) if "weight" in error.path] == [
        "spec.data.sources[0].weight: 0 must be more than 0",
        "spec.data.sources[1].weight: 0 must be more than 0",
    ]


def test_one_mistake_makes_one_message() -> None:
    noisy = {case.id: len(errors) for case in CASES if len(errors := errors_of(job(case.edits))) > 1}
    assert noisy == {}


def test_all_mistakes_are_told_together() -> None:
    edits = {"spec.rounds": 0, "spec.rollout.engine": "vllm", "spec.relay.chunkBytes": "big", "spec.rollout.machine": 1}
    assert {error.path for error in errors_of(job(edits))} == set(edits)


def test_the_minimal_job_is_valid() -> None:
    assert load(yaml.safe_dump(MINIMAL)).spec.rollout.machines == 2


@pytest.mark.parametrize(
    ("source", "path", "advice"),
    [
        ("kind: [", "line 1", "must be YAML or JSON"),
        ("a: 1\nb: }\n", "line 2", "must be YAML or JSON"),
        ("a: 1\n\x07", "line 2", "must be YAML or JSON"),
        ("a: 1\n2026-01-01: 2\n", "line 2", "the key 2026-01-01 needs quotes"),
        ("a: 1\nb: 2026-13-01\n", "line 2", "month must be in 1..12"),
        ("a: " + "[" * 5000, "line 1", "at most 100 levels of nesting"),
        ("a:\n" + "".join(f"{'  ' * level}- \n" for level in range(1, 200)), "line 101", "at most 100 levels"),
        ("apiVersion: rljob.dev/v1alpha1\nkind: RLJob\nspec: &a {b: *a}\n", "(file)", "must not contain itself"),
        ("", "(file)", "must hold exactly one"),
        ("a: 1\n---\nb: 2\n", "(file)", "must hold exactly one"),
        ("- a\n", "(file)", "must hold exactly one"),
        ({**MINIMAL, "kind": "Job"}, "kind", "must be RLJob"),
        ({**MINIMAL, "apiVersion": "rljob.dev/v1"}, "apiVersion", "must be rljob.dev/v1alpha1"),
        ({"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "spec": MINIMAL["spec"]}, "metadata", "is required"),
        (job({f"{CONFIG}.day": date(2026, 1, 1)}), f"{CONFIG}.day", "must be a plain JSON value"),
        (job({"spec.algorithm.learningRate": math.nan}), "spec.algorithm.learningRate", "must be a finite number"),
        (job({"spec.algorithm.learningRate": math.inf}), "spec.algorithm.learningRate", "must be a finite number"),
    ],
)  # fmt: skip
def test_what_is_no_rljob_at_all(source: Any, path: str, advice: str) -> None:
    told = errors_of(source)[0]
    assert told.path == path
    assert advice in told.message


def test_other_objects_in_the_file_are_left_alone() -> None:
    text = f"kind: ConfigMap\n---\n{yaml.safe_dump(MINIMAL)}\n---\nkind: Secret\n"
    assert load(text).name == "demo"
    assert errors_of(f"{text}\n---\n{yaml.safe_dump(MINIMAL)}")[0].value == 2


def test_long_values_are_cut_short() -> None:
    told = next(error for error in errors_of(job({"spec.model.source": "/" + "m" * 2000})))
    assert len(str(told)) < 300
