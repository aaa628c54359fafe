"""Immutability: what may change in an existing job.

Some fields identify the run and never change: with another model or other prompts it would be another run. Others shape
the pods, and change only while the job is suspended. The rest (machines, rounds, the rollout template, deadlines,
failure policy) takes effect at the next boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rljob_api.errors import ABSENT, FieldError, InvalidSpec, show
from rljob_api.spec import RLJob

IDENTITY = (
    "mode",
    "model",
    "data.prompts",
    "data.sources[].name",
    "data.sources[].prompts",
    "data.heldOut",
    "data.seed",
    "environments[].name",
    "environments[].kind",
    "environments[].tools",
    "environments[].command",
    "environments[].function",
    "environments[].openEnv",
    "environments[].verifiers",
    "environments[].reward",
)
"""Fields of the spec that identify the run, on every cluster."""

NEVER = ("managedBy", *IDENTITY, "checkpoint.volumeClaimName", "checkpoint.emptyDir")
"""Immutable fields of the spec."""

WHILE_SUSPENDED = (
    "data.systemPrompt",
    "data.chatTemplate",
    "data.chatTemplateFile",
    "data.chatTemplateArguments",
    "data.chatTemplateRenderer",
    "data.onInvalidRecord",
    "data.maxPromptTokens",
    "data.maxResponseTokens",
    "data.stopStrings",
    "data.sources[].weight",
    "data.sources[].promptsPerRound",
    "data.sources[].rewards",
    "rewards",
    "environments[].state",
    "environments[].reset",
    "environments[].checkout",
    "environments[].maxTurns",
    "environments[].timeoutSeconds",
    "environments[].toolSeconds",
    "environments[].rewardSeconds",
    "environments[].runners",
    "environments[].minRunners",
    "environments[].maxRunners",
    "environments[].episodesPerRunner",
    "episode.maxTurns",
    "episode.maxTokens",
    "episode.maxForks",
    "evaluation",
    "checkpoint.keepBest",
    "algorithm",
    "tailBatching",
    "streamTraining",
    "experience",
    "repack",
    "adaptiveTensorParallel",
    "accelerator",
    "trainer",
    "coordinator",
    "relay",
    "observers",
    "scheduling",
    "rollout.acceleratorsPerMachine",
    "rollout.accelerator",
    "rollout.slotsPerMachine",
    "rollout.tensorParallelSize",
    "rollout.allowedTensorParallelSizes",
    "rollout.engine",
    "rollout.engineOptions",
)
"""Fields of the spec that may change while the job is suspended, or in the edit that suspends or resumes it."""


def validate_update(old: RLJob, new: RLJob) -> None:
    """Check an update.

    Raises `InvalidSpec` with every change that is not allowed: the innermost field, its value and the former one.
    """
    errors = list(_changes(old, new))
    if errors:
        raise InvalidSpec(errors)


def differences(old: RLJob, new: RLJob, paths: Iterable[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield path, old value and new value of the innermost fields below these paths of the spec that differ.

    `list[].field` is a field of each entry."""
    before, after = old.spec.to_dict(), new.spec.to_dict()
    for path in paths:
        above, each, field = path.partition("[].")
        if each:
            yield from _entries(f"spec.{above}", field, _at(before, above), _at(after, above))
            continue
        yield from _differences(f"spec.{path}", _at(before, path), _at(after, path))


def _changes(old: RLJob, new: RLJob) -> Iterator[FieldError]:
    for field, was, now in differences(old, new, NEVER):
        yield FieldError(field, now, f"is immutable, it was {show(was)}; set it back, or make a new RLJob")
    if old.spec.suspend or new.spec.suspend:
        return
    for field, was, now in differences(old, new, WHILE_SUSPENDED):
        advice = f"can change only while the job is suspended, it was {show(was)}; set it back, or set spec.suspend"
        yield FieldError(field, now, f"{advice}: true")


def _differences(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield path, old value and new value of the innermost fields that differ."""
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from _differences(f"{path}.{key}", before.get(key, ABSENT), after.get(key, ABSENT))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (was, now) in enumerate(zip(before, after, strict=True)):
            yield from _differences(f"{path}[{index}]", was, now)
    else:
        yield path, before, after


def _entries(path: str, field: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of one field in the entries of two lists. Their number counts as a difference of `name`."""
    was, now = _each(field, before), _each(field, after)
    if len(was) == len(now):
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from _differences(f"{path}[{index}].{field}", one, other)
    elif field == "name":
        yield path, was or ABSENT, now or ABSENT


def _each(field: str, entries: Any) -> list[Any]:
    return [] if entries is ABSENT else [entry.get(field, ABSENT) for entry in entries]


def _at(spec: dict[str, Any], path: str) -> Any:
    """Return the value at a dotted path, or `ABSENT`."""
    node: Any = spec
    for step in path.split("."):
        if not isinstance(node, dict) or step not in node:
            return ABSENT
        node = node[step]
    return node
