"""A manifest on this machine: paths from its folder, folders in place of claims."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import InvalidSpec
from rljob_runtime.cli.run.manifest import localised, parse_claims

Json = dict[str, Any]


def document(**sources: str) -> Json:
    spec: Json = {"rounds": 8, "rewards": [{"weight": 1.0}], "model": {"source": sources.get("model", "hf://a/b")}}
    if "file" in sources:
        spec["data"] = {"prompts": {"file": {"path": sources["file"]}}}
    return {"kind": "RLJob", "metadata": {"name": "a"}, "spec": spec}


def test_paths_are_relative_to_the_manifest(tmp_path):
    (tmp_path / "train.jsonl").write_text("")
    found = localised(document(model="./model", file="train.jsonl"), tmp_path, {})
    assert found["spec"]["model"]["source"] == str(tmp_path / "model")
    assert found["spec"]["data"]["prompts"]["file"]["path"] == str(tmp_path / "train.jsonl")


def test_the_file_of_a_chat_template_may_be_relative_and_on_a_claim(tmp_path):
    (tmp_path / "chat.jinja").write_text("")
    for source in ("chat.jinja", "./chat.jinja", "pvc://data/chat.jinja"):
        given = document()
        given["spec"]["data"] = {"chatTemplateFile": source}
        found = localised(given, tmp_path, {"data": tmp_path})
        assert found["spec"]["data"]["chatTemplateFile"] == str(tmp_path / "chat.jinja")


TOOLS = "environments[0].tools[0].function"


def with_code(function: str, reward: str) -> Json:
    found = document()
    found["spec"]["environments"] = [{"name": "calc", "tools": [{"function": function}, {}], "reward": reward}]
    return found


def test_a_function_of_a_file_has_the_path_from_the_manifest(tmp_path):
    (tmp_path / "calculator.py").write_text("")
    given = with_code("calculator.py:evaluate", "pkg.calculator:score")
    found = localised(given, tmp_path, {})["spec"]["environments"][0]
    assert found["tools"] == [{"function": f"{tmp_path}/calculator.py:evaluate"}, {}]
    assert found["reward"] == "pkg.calculator:score"
    assert given == with_code("calculator.py:evaluate", "pkg.calculator:score"), "the given document stays as it is"


def test_the_file_of_an_agents_function_is_checked(tmp_path):
    given = document()
    given["spec"]["environments"] = [{"name": "own", "kind": "Agent", "function": "agent.py:solve"}]
    with pytest.raises(InvalidSpec, match=r"environments\[0\].function: 'agent.py:solve' must name a function"):
        localised(given, tmp_path, {})
    (tmp_path / "agent.py").write_text("")
    found = localised(given, tmp_path, {})["spec"]["environments"][0]
    assert found["function"] == f"{tmp_path}/agent.py:solve"


def test_files_of_functions_that_are_not_there_are_all_named(tmp_path):
    with pytest.raises(InvalidSpec) as refused:
        localised(with_code("calculator.py:evaluate", "/no/score.py:score"), tmp_path, {})
    assert [str(error) for error in refused.value.errors] == [
        f"spec.{TOOLS}: 'calculator.py:evaluate' must name a function of a Python file; {tmp_path}/calculator.py is no "
        "file",
        "spec.environments[0].reward: '/no/score.py:score' must name a function of a Python file; /no/score.py is no "
        "file",
    ]


@pytest.mark.parametrize("source", ["/a/b", "hf://a/b", "package://rljob/toy", "Qwen/Qwen3", "", "a\0b"])
def test_other_sources_stay_as_they_are(tmp_path, source):
    """A hub's name without its scheme is refused by the API, which names the scheme."""
    assert localised(document(model=source), tmp_path, {})["spec"]["model"]["source"] == source


def test_a_claim_is_a_folder(tmp_path):
    claims = parse_claims([f"data={tmp_path}"])
    found = localised(document(model="pvc://data", file="pvc://data/a/b.jsonl"), Path("/x"), claims)
    assert found["spec"]["model"]["source"] == str(tmp_path)
    assert found["spec"]["data"]["prompts"]["file"]["path"] == str(tmp_path / "a" / "b.jsonl")
    with pytest.raises(InvalidSpec, match=r"add --claim data=FOLDER"):
        localised(document(model="pvc://data/m"), Path("/x"), {"other": tmp_path})


@pytest.mark.parametrize("text", ["data", "=x", "data=", "data=/no/such/folder"])
def test_a_wrong_claim_is_refused(text):
    with pytest.raises(InvalidSpec, match=r"--claim"):
        parse_claims([text])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(spec=anything, assignment=st.text(max_size=20) | st.just("spec.data.prompts.file.path=./a"))
def test_any_document_is_localised_or_refused_and_never_changed(spec, assignment):
    before = {"spec": spec}
    kept = copy.deepcopy(before)
    with contextlib.suppress(InvalidSpec):
        localised(before, Path("/nowhere"), {}, [assignment])
    assert before == kept
