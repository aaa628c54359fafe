"""Pod templates that a property test draws: partial pods of the API's types, most of the time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rljob_api.parsing import pod_schema

Json = dict[str, Any]
TYPES: Json = json.loads(Path(pod_schema.__file__).with_name("pod_schema.json").read_text(encoding="utf-8"))
NAMES = st.sampled_from(["main", "rewards", "x", "y", "rljob-tmp", "/x", "/tmp", ""])
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": NAMES,
    "boolean": st.booleans(),
    "int32": st.integers(0, 3),
    "int64": st.integers(0, 3),
    "int-or-string": st.sampled_from([8080, "health"]),
    "quantity": st.sampled_from([1, "1", "1Gi", "500m", 0.5]),
    "object": st.just({}),
}
JUNK = st.recursive(
    st.sampled_from([None, "x", "", 0, -1, 1 << 40, 1.5, True]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "a", ""]), inner, max_size=2),
    max_leaves=3,
)


@st.composite
def value(draw: st.DrawFn, kind: str, depth: int = 0) -> Any:
    """A value of a type of the API, most of the time."""
    if draw(st.integers(0, 24)) == 0:
        return draw(JUNK)
    if kind.startswith("[]"):
        return [draw(value(kind[2:], depth + 1)) for _ in range(draw(st.integers(0, 2)))]
    if kind.startswith("map[]"):
        return {draw(NAMES): draw(value(kind[5:], depth + 1)) for _ in range(draw(st.integers(0, 2)))}
    if kind in SCALARS:
        return draw(SCALARS[kind])
    fields = TYPES[kind]["fields"]
    some = draw(st.lists(st.sampled_from(sorted(fields)), max_size=3 if depth < 4 else 0, unique=True))
    chosen = [*some, *(name for name in TYPES[kind]["required"] if draw(st.integers(0, 15)))]
    return {name: draw(value(fields[name], depth + 1)) for name in chosen}


@st.composite
def template(draw: st.DrawFn) -> Json:
    """A partial pod whose main container is written out, most of the time."""
    spec = draw(value("PodSpec"))
    if isinstance(spec, dict):
        for field in ("hostname", "nodeName", "priority", "ephemeralContainers", "hostNetwork", "subdomain"):
            spec.pop(field, None)  # always refused
        main = draw(value("Container"))
        others = spec.get("containers")
        if isinstance(main, dict):
            main = {**main, "name": "main"}
        spec["containers"] = [main, *(others if isinstance(others, list) else [])]
    return {"spec": spec}
