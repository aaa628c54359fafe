"""Whatever stands in a manifest, `load` answers with a job or with `InvalidSpec`, never with anything else."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljob_api import FieldError, InvalidSpec, load
from tests.support.api.jobs import job
from tests.support.api.kubectl import Kube
from tests.support.examples import examples

WHOLE = job(
    {
        "spec.rollout.template": {
            "metadata": {"labels": {"team": "a"}, "annotations": {"a/b": "c"}},
            "spec": {
                "nodeSelector": {"a": "b"},
                "volumes": [{"name": "data", "emptyDir": {}}],
                "initContainers": [{"name": "init", "image": "i:1"}],
                "containers": [
                    {
                        "name": "main",
                        "env": [{"name": "A", "value": "b"}],
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": 1}},
                    },
                    {"name": "proxy", "image": "p:1", "resources": {}},
                ],
            },
        },
        "spec.relay.chunkBytes": "1Mi",
        "spec.runPolicy.ttlSecondsAfterFinished": 5,
        "spec.checkpoint.emptyDir": {"sizeLimit": "1Gi"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "members": [{"machine": "rollout-0", "incarnation": 1, "role": "Rollout"}],
            "runtime": {"round": 1, "suspects": [{"machine": "rollout-0", "incarnation": 1}]},
        },
    }
)


def places(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in a document, the whole excluded."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for step, child in items:
        yield (*path, step)
        yield from places(child, (*path, step))


def junk(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | numbers | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "limits", "a", "spec", ""]), inner, max_size=2),
        max_leaves=4,
    )


JUNK = junk(st.integers() | st.floats())
PORTABLE = junk(st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9))
"""With numbers only that mean the same in JSON, Go and Python."""


def replaced(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(WHOLE)
    node: Any = document
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    return document


def mistakes(document: dict[str, Any]) -> list[FieldError] | None:
    """None for a job that loads."""
    try:
        load(document)
    except InvalidSpec as refused:
        return refused.errors
    return None


MAIN: tuple[str | int, ...] = ("spec", "rollout", "template", "spec", "containers", 0)


@settings(max_examples=examples(400))
@given(st.sampled_from(sorted(places(WHOLE), key=str)), JUNK)
@example((*MAIN, "resources"), {"limits": []})
@example((*MAIN, "volumeMounts", 0), {"mountPath": None})
@example(("status", "conditions"), {"type": "Ready"})
def test_load_is_total(place: tuple[str | int, ...], junk: Any) -> None:
    told = mistakes(replaced(place, junk))
    assert told != []
    assert all(error.path and error.message for error in told or [])


def test_the_whole_job_is_valid() -> None:
    assert load(WHOLE).spec.relay.chunk_bytes == 1 << 20


@pytest.mark.cluster
@settings(max_examples=examples(200))
@given(st.sampled_from(sorted(places({"spec": WHOLE["spec"]}), key=str)), PORTABLE)
def test_what_loads_the_server_takes(server: Kube, place: tuple[str | int, ...], junk: Any) -> None:
    """And makes the same of it. The converse does not hold: there is much that a server cannot see."""
    document = replaced(place, junk)
    if mistakes(document) is None:
        assert load(server.admitted(document)).spec == load(document).spec
