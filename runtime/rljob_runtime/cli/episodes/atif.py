"""ATIF: an attempt as documents of the Agent Trajectory Interchange Format, version 1.8.

A document is a line of steps, and an episode is a tree. So each leaf has a document: what training has as one sequence.
A turn that several leaves share is sampled in the first of them. In the others it is copied context, which readers
leave out of training, as training itself does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from rljob_runtime.cli.episodes.stored import StoredAttempt
from rljob_runtime.samples.episode import SampleCall, SampleEpisode, SampleMessage, SampleTurn
from rljob_runtime.scheduling.episodes.node import Node
from rljob_runtime.scheduling.episodes.tree import TokenTree

SCHEMA = "ATIF-v1.8"
NO_TEXTS = "No sample of this episode is kept (spec.samples), so its messages have no texts. Tokens are complete."

Json = dict[str, Any]


def atif_documents(job: str, attempt: StoredAttempt, texts: SampleEpisode | None) -> Iterator[Json]:
    """Yield the documents of an attempt, one for each leaf that was sampled. `texts`: of its sample."""
    tree = TokenTree.of(attempt.nodes.values())
    told: set[int] = set()
    turns = {turn.node: turn for turn in texts.turns} if texts is not None else {}
    for leaf in tree.leaves():
        path = tree.path(leaf.id)
        if all(node.id in told for node in path if node.is_sampled):
            continue
        steps = list(_steps(path, attempt, turns, told))
        told |= {node.id for node in path if node.is_sampled}
        for number, step in enumerate(steps, 1):
            step["step_id"] = number
        document = {
            "schema_version": SCHEMA,
            "session_id": f"{job}/{attempt.prompt}.{attempt.sample}",
            "trajectory_id": f"{attempt.number}-{leaf.id}",
            "agent": _agent_of(job, attempt.environment, texts),
            "steps": steps,
            "final_metrics": _sums(steps),
            "extra": _facts(attempt),
        }
        yield document | ({} if texts is not None else {"notes": NO_TEXTS})


def _steps(
    path: Sequence[Node], attempt: StoredAttempt, turns: dict[int, SampleTurn], told: set[int]
) -> Iterator[Json]:
    """Yield the steps of a path. Results of tools belong to the step whose turn called them."""
    prompt: list[int] = []
    spoke: Json | None = None
    for node in path:
        if node.is_sampled:
            turn = turns.get(node.id, SampleTurn(node.id))
            given = turn.messages or ((SampleMessage("user", turn.given),) if turn.given else ())
            copied = {"is_copied_context": True} if node.id in told else {}
            for message in given:
                if message.role == "tool" and spoke is not None:
                    _observe(spoke, message)
                else:
                    yield _given(message) | copied
            spoke = _agent(node, turn, prompt, attempt.stored[node.id]) | copied
            yield spoke
        prompt += node.token_ids


def _agent_of(job: str, environment: str, texts: SampleEpisode | None) -> Json:
    """Return the agent, with the names of the tools that the model was offered.

    They are `extra`: `tool_definitions` of the standard are whole schemas, and only names are kept."""
    agent: Json = {"name": environment, "version": version("rljob"), "model_name": job}
    if texts is not None and texts.tools:
        agent["extra"] = {"tools": list(texts.tools)}
    return agent


def _given(message: SampleMessage) -> Json:
    """Return the step of a message that the model did not sample."""
    source = "system" if message.role == "system" else "user"
    step: Json = {"step_id": 0, "source": source, "message": message.content}
    if message.role != source:
        step["extra"] = {"role": message.role}
    return step


def _agent(node: Node, turn: SampleTurn, prompt: Sequence[int], stored: float) -> Json:
    finish = str(node.finish) if node.finish is not None else None
    step: Json = {
        "step_id": 0,
        "timestamp": datetime.fromtimestamp(stored, UTC).isoformat(timespec="milliseconds"),
        "source": "agent",
        "message": turn.sampled,
        "llm_call_count": 1,
        "metrics": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(node.token_ids),
            "prompt_token_ids": list(prompt),
            "completion_token_ids": list(node.token_ids),
            "logprobs": list(node.logprobs),
            "extra": {"weight_version": node.version, "finish_reason": finish, "node": node.id},
        },
    }
    if turn.calls:
        step["tool_calls"] = [_call(call, node.id, place) for place, call in enumerate(turn.calls)]
    return step


def _call(call: SampleCall, node: int, place: int) -> Json:
    """Return a tool call. Arguments that are no object stay as their text."""
    found: Json = {"tool_call_id": call.id or f"call_{node}_{place}", "function_name": call.name}
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return found | {"arguments": arguments}
    return found | {"arguments": {}, "extra": {"arguments_text": call.arguments}}


def _observe(step: Json, message: SampleMessage) -> None:
    """Add the result of a tool to the step that called it."""
    calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
    result: Json = {"content": message.content}
    if message.call_id in calls:
        result["source_call_id"] = message.call_id
    step.setdefault("observation", {"results": []})["results"].append(result)


def _sums(steps: Sequence[Json]) -> Json:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    return {
        "total_prompt_tokens": sum(one["prompt_tokens"] for one in metrics),
        "total_completion_tokens": sum(one["completion_tokens"] for one in metrics),
        "total_steps": len(steps),
    }


def _facts(attempt: StoredAttempt) -> Json:
    facts = {
        "attempt": attempt.number,
        "state": attempt.state,
        "end": attempt.end,
        "reward": attempt.reward,
        "metrics": dict(attempt.metrics) or None,
        "round": attempt.round,
    }
    return {name: value for name, value in facts.items() if value is not None}
