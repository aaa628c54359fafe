"""Generated pages are fresh, and have all that they are to list."""

from __future__ import annotations

import re

import pytest

from hack.reference import PAGES, _default, _meaning, _type
from rljob_operator.metrics import Metrics
from tests.support.docs import page, quoted, rows


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_fresh(name: str) -> None:
    assert page(name).read_text(encoding="utf-8") == PAGES[name](), "run: make reference"


def test_every_metric_of_the_operator_is_listed() -> None:
    told = {name for metric, *_ in rows(page("metrics.md"), "## Operator") for name in quoted(metric)}
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in Metrics().registry.collect()
    }
    assert told == names
    labels = {metric: quoted(labels) for metric, _, labels, _ in rows(page("metrics.md"), "## Operator")}
    assert labels["`rljob_replacements_total`"] == ["role", "reason"]


def test_nested_fields_and_lists_have_a_table_each() -> None:
    heads = re.findall(r"^## (.*)$", page("fields.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"spec.rollout", "spec.rewards[]", "spec.failurePolicy.backoff", "status.runtime.lastRound"} <= set(heads)


@pytest.mark.parametrize(
    ("field", "type_", "default", "meaning"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 604800, "default": 60}, "integer, 1 to 604,800", "`60`", ""),
        ({"type": "number", "minimum": 0}, "number, 0 to", "", ""),
        ({"type": "boolean", "default": False, "description": "Wait. Default: false."}, "boolean", "`false`", "Wait."),
        ({"enum": ["A", "B"], "description": "Two\n lines."}, "A, B", "", "Two lines."),
        ({"items": {"type": "string", "description": "One of them."}}, "list of string", "", "One of them."),
        ({"x-kubernetes-int-or-string": True, "default": {}}, "integer or text", "", ""),
    ],
)
def test_a_field_is_described(field: dict[str, object], type_: str, default: str, meaning: str) -> None:
    assert (_type(field), _default(field), _meaning(field)) == (type_, default, meaning)
