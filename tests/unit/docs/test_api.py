"""docs/reference/api.md, and what other pages say of fields: paths exist, lists are whole, examples are valid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api import InvalidSpec, load
from rljob_api.admission.immutability import NEVER, WHILE_SUSPENDED
from rljob_api.admission.renamed import RENAMED
from rljob_api.rules import templates
from rljob_api.schema.crd import crd
from tests.support.docs import PAGES, page, quoted, rows, text_of
from tests.support.paths import ROOT

API = page("api.md")
SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
FOREIGN = {"spec.active", "spec.schedulingGroup.podGroupName", "spec.rolout"}
"""Of a Workload, of a pod, and the mistake whose message is shown."""


def _below(schema: Mapping[str, Any], path: list[str]) -> bool:
    """Whether a schema has a field at this path, or keeps whatever is there."""
    if not path:
        return True
    schema = schema.get("items", schema)
    if schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema:
        return True
    found = schema.get("properties", {}).get(path[0])
    return found is not None and _below(found, path[1:])


def _leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The paths of all fields that have none below them."""
    below = schema.get("items", schema).get("properties", {})
    if not below:
        yield path
    for name, field in below.items():
        yield from _leaves(field, f"{path}.{name}" if path else name)


def _starts() -> dict[str, list[Mapping[str, Any]]]:
    """Where a dotted path may begin: at `spec` and `status`, at their fields, and at some below."""
    spec, status = SCHEMA["spec"]["properties"], SCHEMA["status"]["properties"]
    runtime = status["runtime"]["properties"]
    below = {
        **{name: spec["failurePolicy"]["properties"][name] for name in ("nodeFailure", "backoff")},
        "engineOptions": spec["rollout"]["properties"]["engineOptions"],
        "lastRound": runtime["lastRound"],
        "totals": runtime["totals"],
    }
    found: dict[str, list[Mapping[str, Any]]] = {}
    for names in (spec, status, below, {"spec": SCHEMA["spec"], "status": SCHEMA["status"]}):
        for name, schema in names.items():
            found.setdefault(name, []).append(schema)
    return found


DOTTED = re.compile(r"(?<![\w./-])(?:[a-z][A-Za-z]*(?:\[\])?\.)+[a-z][A-Za-z]*(?![\w/:(-]|\.\w)")
FILES = (".py", ".md", ".db", ".json", ".jsonl", ".log", ".yaml", ".safetensors")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_fields_that_are_named_by_their_paths_exist(path: Path) -> None:
    starts = _starts()
    wrong = []
    for text in quoted(text_of(path)):
        for found in DOTTED.findall(text):
            first, *rest = found.replace("[]", "").split(".")
            if found.endswith(FILES):
                continue
            if first in starts and found not in FOREIGN and not any(_below(one, rest) for one in starts[first]):
                wrong.append(found)
    assert wrong == []


# --- what may change --------------------------------------------------------------------------------------------------


def test_what_may_change_is_what_the_code_says() -> None:
    told = {when.partition(",")[0]: tuple(quoted(fields)) for when, fields in rows(API, "## What may change later")}
    assert set(told["never"]) == set(NEVER)
    assert set(told["while suspended"]) == set(WHILE_SUSPENDED)
    renamed = {f"{one.parent}.{one.old}" for one in RENAMED}
    free = {one for one in _leaves(SCHEMA["spec"]) if not _is_below(one, NEVER + WHILE_SUSPENDED)} - renamed
    assert {one for one in free if not _is_below(one, told["any time"])} == set()
    assert [one for one in told["any time"] if not any(_is_below(leaf, (one,)) for leaf in free)] == []


def _is_below(field: str, paths: Sequence[str]) -> bool:
    plain = [path.replace("[]", "") for path in paths]
    return any(field == path or field.startswith(f"{path}.") for path in plain)


def test_the_fields_of_a_template_that_are_ours_are_all_told() -> None:
    told = {field for fields, _ in rows(API, "## Pod templates") for field in quoted(fields)}
    assert set(templates._OURS) <= told
    assert {"serviceAccountName", "serviceAccount"} <= told


# --- examples ---------------------------------------------------------------------------------------------------------


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


JOBS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in PAGES
    for number, block in enumerate(_blocks(path, "yaml"))
    if "kind: RLJob" in block and "spec:" in block and "ignoreDifferences" not in block
]


@pytest.mark.parametrize("block", JOBS)
def test_an_rljob_that_is_printed_is_valid(block: str) -> None:
    assert load(block).spec.rounds


def test_there_are_such_jobs() -> None:
    assert len(JOBS) >= 2


PARTS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in PAGES
    for number, block in enumerate(_blocks(path, "yaml"))
    if re.match(r"(rewards|rollout|coordinator):", block)
]


@pytest.mark.parametrize("block", PARTS)
def test_a_part_of_a_spec_that_is_printed_is_valid(block: str) -> None:
    """In the least job, with machines that it fits."""
    least = yaml.safe_load(_blocks(API, "yaml")[0])
    for name, part in yaml.safe_load(block).items():
        rollout = name == "rollout"
        least["spec"][name] = {"machines": 2, "acceleratorsPerMachine": 4, **part} if rollout else part
    functions = "reward" in str(least["spec"].get("coordinator", {})) and "rewards:" not in block
    if functions:
        least["spec"]["rewards"] = [{"name": "mine", "kind": "Python", "function": "my_rewards:score"}]
    load(least)


def test_there_are_such_parts() -> None:
    assert len(PARTS) >= 4


def _refusal(changes: Mapping[str, Any]) -> str:
    least = yaml.safe_load(_blocks(API, "yaml")[0])
    for name, fields in changes.items():
        least["spec"][name] = {**least["spec"].get(name, {}), **fields}
    with pytest.raises(InvalidSpec) as refused:
        load(least)
    return str(refused.value)


def test_messages_that_are_shown_are_those_that_are_told() -> None:
    [shown] = re.findall(r"^```\n(spec\..*?)^```", API.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    causes: list[Mapping[str, Any]] = [
        {"rollout": {"acceleratorsPerMachine": 8, "tensorParallelSize": 3}},
        {"rollout": {"machine": 3}},
        {"experience": {"maxPrompts": 64}},
    ]
    for line, cause in zip(shown.splitlines(), causes, strict=True):
        assert line.removesuffix("…").strip() in _refusal(cause)


def test_every_top_level_field_of_the_status_is_told() -> None:
    section = text_of(API).partition("\n## The status\n")[2].partition("\n## ")[0]
    plain = {"observedGeneration", "coordinator", "trainer", "rollout"}
    assert set(SCHEMA["status"]["properties"]) - plain - set(re.findall(r"`(\w+)`", section)) == set()
