"""Jobs with environments, for the operator's tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_api.spec import RLJob
from tests.support.operator.harness import make_job, merged

Json = dict[str, Any]

CALC: Json = {
    "name": "calc",
    "kind": "Tools",
    "tools": [{"function": "calculator.py:add"}, {"mcp": {"url": "http://search.tools.svc:9000/mcp"}}],
    "runners": 2,
}
SHELL: Json = {"name": "shell", "kind": "Agent", "command": ["python", "agent.py"]}


def with_environments(*environments: Json, status: Mapping[str, Any] | None = None, **changes: Any) -> RLJob:
    """A job with these environments, or with one called `calc` that has two runners."""
    return make_job(status, environments=list(environments or (CALC,)), **changes)


def calc(**changes: Any) -> Json:
    """The environment `calc` with changes."""
    return merged(CALC, changes)
