"""A manifest means on a laptop what it means in a cluster: YAML is read as kubectl reads it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import InvalidSpec, load
from rljob_api.parsing import yaml_text
from tests.support.api.jobs import MINIMAL
from tests.support.api.kubectl import Kube

TEXT = yaml.safe_dump(MINIMAL, sort_keys=False)

SCALARS: dict[str, Any] = {
    "1e3": 1000, "1.0e3": 1000, "1.5e3": 1500, "1.0E+3": 1000, "2.5e1": 25, "1000.0": 1000, "1e-5": 1e-5, "1E-5": 1e-5,
    "1.e-5": 1e-5, ".5e-5": 5e-6, "+1e-4": 1e-4, "-.5": -0.5, "1.5": 1.5, "1_000": 1000, "1_000.5": 1000.5,
    "0x1F": 31, "-0x1f": -31, "0b101": 5, "0o17": 15, "017": 15, "-017": -15, "08": 8, "0": 0, "-0": 0, "+7": 7,
    "1e25": 1e25, "123456789012345678": 123456789012345678,
    "2:30": "2:30", "1:30:00": "1:30:00", "1:30.5": "1:30.5", "1.2.3": "1.2.3", "1e": "1e", "0x": "0x", ".": ".",
    "yes": True, "No": False, "on": True, "OFF": False, "y": True, "N": False, "true": True, "~": None, "null": None,
    "yn": "yn", "'1e3'": "1e3", '"yes"': "yes", "nan": "nan", "4Gi": "4Gi", "500m": "500m",
}  # fmt: skip
"""What stands in a file, and what kubectl makes of it."""


def read(text: str) -> Any:
    (document,) = yaml_text.documents(text)
    return document


@pytest.mark.parametrize("text", list(SCALARS))
def test_a_scalar_is_read_as_by_kubectl(text: str) -> None:
    found = read(f"a: {text}\n")["a"]
    assert found == SCALARS[text]
    assert type(found) is type(SCALARS[text])


def test_what_is_no_number_in_json_is_still_told_from_a_text() -> None:
    assert math.isnan(read("a: .nan")["a"])
    assert read("a: [.inf, -.Inf]")["a"] == [math.inf, -math.inf]


@pytest.mark.cluster
def test_kubectl_reads_the_same(server: Kube) -> None:
    fields = "".join(f"  k{number}: {text}\n" for number, text in enumerate(SCALARS))
    manifest = f"apiVersion: example.com/v1\nkind: Thing\nmetadata:\n  name: a\nspec:\n{fields}"
    path = server.kubeconfig.with_name("scalars.yaml")
    path.write_text(manifest)
    shown = json.loads(server.run("annotate", "--local", "-f", str(path), "a=b", "-o", "json").stdout)["spec"]
    ours = read(manifest)["spec"]
    assert {text: shown.get(f"k{number}") for number, text in enumerate(SCALARS)} == {
        text: ours[f"k{number}"] for number, text in enumerate(SCALARS)
    }


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53))
def test_every_number_of_json_is_a_number(number: float) -> None:
    assert read(f"a: {json.dumps(number)}")["a"] == number


@pytest.mark.parametrize(
    ("text", "line", "first"),
    [
        (TEXT + "spec: {}\n", "spec: {}", "spec appears twice, first in line 5"),
        (TEXT.replace("  rounds: 24\n", "  rounds: 24\n  rounds: 3\n"), "rounds: 3", "rounds appears twice"),
        ('{"a": 1,\n "a": 2}', '"a": 2}', "a appears twice, first in line 1"),
        ("a:\n  1: x\n  '1': y\n", "'1': y", "1 appears twice, first in line 2"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n  d: 1\n  d: 2\n", "d: 2", "d appears twice"),
    ],
    ids=["the spec", "a field", "JSON", "a number and its text", "beside a merge"],
)
def test_a_key_that_stands_twice_is_refused(text: str, line: str, first: str) -> None:
    with pytest.raises(InvalidSpec, match=first) as caught:
        load(text)
    (error,) = caught.value.errors
    assert error.value == line
    assert error.path.startswith("line ")


def test_a_key_may_replace_what_a_merge_brings_in() -> None:
    assert read("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}\n")["d"] == {"b": 3, "c": 2}


def test_a_time_of_base_60_is_no_number_of_rounds() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.rounds: '2:30' must be a whole number"):
        load(TEXT.replace("rounds: 24", "rounds: 2:30"))
    assert load(TEXT.replace("rounds: 24", "rounds: 2.4e1")).spec.rounds == 24
