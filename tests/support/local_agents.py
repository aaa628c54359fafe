"""A job of agents for `rljob run`."""

from __future__ import annotations

from rljob_api import load
from rljob_api.spec import RLJob


def job() -> RLJob:
    """A calculator's agent on the toy model."""
    prompts = {"file": {"path": "/unused"}}
    return load(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "calculator", "namespace": "default"},
            "spec": {
                "model": {"source": "package://rljob/toy"},
                "data": {"prompts": prompts, "maxPromptTokens": 256, "maxResponseTokens": 64},
                "rewards": [{"name": "right", "kind": "Math"}],
                "rollout": {"machines": 1},
                "rounds": 1,
                "environments": [{"name": "calc", "kind": "Agent", "command": ["python", "agent.py"], "runners": 2}],
            },
        }
    )
