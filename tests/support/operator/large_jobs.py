"""The largest job that an API server stores."""

from __future__ import annotations

import json
from typing import Any

from rljob_api.constants import MAX_SPEC_LENGTH
from tests.support.operator.harness import manifest

MACHINES = 1024


def largest(machines: int = MACHINES, **changes: Any) -> dict[str, Any]:
    """A job whose spec is nearly as long as one may be."""
    document = manifest(rollout={"machines": machines, **changes})
    room = MAX_SPEC_LENGTH - 5000 - len(json.dumps(document))
    environment = [{"name": f"A{number:04}", "value": "x"} for number in range(room // 29)]
    template = {"spec": {"containers": [{"name": "main", "env": environment}]}}
    document["spec"]["rollout"]["template"] = template
    document["metadata"] |= {"uid": "11111111-2222", "generation": 1, "resourceVersion": "7", "namespace": "default"}
    return document
