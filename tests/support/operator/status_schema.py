"""Statuses that the API server lets through: values for hypothesis from the CRD's own schema."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import yaml

from tests.support.operator.harness import CRD

Json = dict[str, Any]

WORDS = [
    "rollout-0",
    "rollout-1",
    "rollout-7",
    "trainer-0",
    "coordinator-0",
    "coordinator",
    "Coordinator",
    "Trainer",
    "Rollout",
    "n1",
    "n2",
    "Generating",
    "Suspended",
    "HeartbeatLost",
    "KeepsFailing",
    "BrokenSocket",
    "RoundsFinished",
    "SandboxUnavailable",
    "True",
    "False",
    "0",
]
_MOMENTS = ("2001-01-01T00:00:00Z", "2026-01-31T12:00:00Z", "2026-01-31T11:59:00.5Z", "2099-12-31T23:59:59+01:00")


def schema() -> Json:
    """Of a status."""
    found: Json = yaml.load(CRD.read_text(), yaml.CSafeLoader)
    (version,) = found["spec"]["versions"]
    status: Json = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    return status


def values(node: Json) -> st.SearchStrategy[Any]:
    """Whatever fits the schema; words of the job's own among its strings."""
    if "enum" in node:
        return st.sampled_from(node["enum"])
    match node.get("type"):
        case "object" if "additionalProperties" in node:
            return st.dictionaries(st.sampled_from(WORDS), values(node["additionalProperties"]), max_size=3)
        case "object":
            properties = {key: values(one) for key, one in node.get("properties", {}).items()}
            needed = {key: properties.pop(key) for key in node.get("required", ())}
            return st.fixed_dictionaries(needed, optional=properties)
        case "array":
            keys = node.get("x-kubernetes-list-map-keys")
            unique = (lambda item: tuple(item.get(key) for key in keys)) if keys else None
            most = min(3, node.get("maxItems", 3))
            return st.lists(values(node["items"]), max_size=most, unique_by=unique)
        case "integer":
            return st.integers(_least(node), int(node.get("maximum", 2**63 - 1))) | st.integers(_least(node), 9)
        case "number":
            least, most = node.get("minimum"), node.get("maximum")
            return st.floats(least, most, allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "string" if node.get("format") == "date-time":
            return st.sampled_from(_MOMENTS)
        case "string":
            return _texts(node)
    raise AssertionError(f"a schema that is not known here: {node}")


def _least(node: Json) -> int:
    return int(node.get("minimum", -(2**63)))


def _texts(node: Json) -> st.SearchStrategy[str]:
    longest, shortest = node.get("maxLength", 50), node.get("minLength", 0)
    words = [word for word in WORDS if shortest <= len(word) <= longest]
    if "pattern" in node:
        return st.from_regex(str(node["pattern"]), fullmatch=True).filter(lambda text: shortest <= len(text) <= longest)
    # The API server stores no half of a surrogate pair.
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=shortest, max_size=min(longest, 40))
    return st.sampled_from(words) | text if words else text
