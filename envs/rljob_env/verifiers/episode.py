"""Verifiers episode: plays one task of a `verifiers` environment with the model of an attempt, in a worker process.

The package is imported when the first episode begins: the runner itself works without it. What the environment says is
its reward and its metrics. The tokens are the gateway's, and what the environment has traced of them is only counted.

The time of a rollout begins when all is loaded, and ends at the attempt's deadline: the clock of deadlines is that of
all processes of a machine.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Json = dict[str, Any]

KEY_VARIABLE = "RLJOB_MODEL_API_KEY"
"""Where the package's client finds the attempt's key. Programs of the environment do not inherit such a name."""
LIMITS = ("episode_limit_reached", "context_length_exceeded")
OVER = (401, 403)
"""Statuses of the gateway once the attempt has ended."""
AWAY = 500
"""Statuses from this one say that the gateway did not answer."""
TURNS, SECONDS = "turns", "seconds"
"""The job's limits that may have stopped a rollout."""
MAX_TURNS = "max_turns"
"""How the package names its limit of turns as what stopped a rollout."""
MOST_METRICS = 48
MOST_METRIC_NAME = 128
OWN_HARNESS, CHAT_HARNESS = "bash", "null"
"""What the package gives a taskset without a harness, and what it gets here: no shell unless the job asks for one."""
CLOUD, HERE = "prime", "subprocess"
"""Where the package runs harnesses unless told otherwise, and where they run here: beside the runner."""


def load(given: Json) -> None:
    """Load the package, the environment and the task, as far as this process has not loaded them.

    Raises what the package raises on wrong settings, and `IndexError` for a task that is not there.
    """
    _tasks(given).at(given["task"])


async def play(given: Json) -> Json:
    """Return what became of an episode: `reward`, `metrics`, `detail`, `limit`; or `failed`, or `over`.

    `given`: id, args, task, model, baseUrl, apiKey, maxTurns, and deadline on the monotonic clock. Raises as `load`.
    """
    verifiers = importlib.import_module("verifiers.v1")
    os.environ[KEY_VARIABLE] = given["apiKey"]
    client = verifiers.EvalClientConfig(base_url=given["baseUrl"], api_key_var=KEY_VARIABLE)
    task = _tasks(given).at(given["task"])
    environment = _environment(given)
    async with environment.serving():
        episode = await environment.run_episode(task, verifiers.ModelContext(model=given["model"], client=client))
    return outcome(episode, given)


def outcome(episode: Any, given: Json) -> Json:
    """Return what an episode of the package says. `given`: as of `play`."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    metrics = _metrics(episode)
    if any(error.status_code in OVER for error in errors):
        return {"over": _texts(errors)}
    if any(not _is_limit(error) for error in errors):
        return {"failed": _texts(errors)}
    if any(trace.is_timeout and _is_away(trace) for trace in episode.traces):
        return {"failed": "the gateway did not answer until the deadline"}
    if errors:
        # The policy used its turns or tokens up, and the package scores no such episode.
        return {"reward": None, "metrics": metrics, "detail": _texts(errors), "limit": None}
    rewards = [trace.rewards for trace in episode.traces if trace.agent.trainable]
    if any(value is None for one in rewards for value in one.values()):
        return {"failed": "the environment did not score the episode"}
    totals = [sum(value.value for value in one.values()) for one in rewards if one]
    reward = sum(totals) / len(totals) if totals else None
    return {"reward": reward, "metrics": metrics, "detail": "", "limit": _limit(episode, given)}


def _limit(episode: Any, given: Json) -> str | None:
    """Return the job's limit that stopped a rollout. A lower one of the environment's own is its rule, and no limit."""
    if any(trace.is_timeout for trace in episode.traces) and time.monotonic() >= given["deadline"]:
        return SECONDS
    if any(
        trace.stop_condition == MAX_TURNS and len(_answered(trace)) >= given["maxTurns"] for trace in episode.traces
    ):
        return TURNS
    return None


def _environment(given: Json) -> Any:
    loaders = importlib.import_module("verifiers.v1.utils.loaders")
    return loaders.load_environment(loaders.resolve_env_config(_settings(loaders, given)))


def _settings(loaders: Any, given: Json) -> Json:
    """Return the package's settings of an environment: those of the job, and ours where the job says nothing."""
    settings = dict(given["args"])
    settings["taskset"] = {**settings.get("taskset", {}), "id": given["id"]}
    agent = importlib.import_module("verifiers.v1").AgentConfig
    fields = loaders.env_config_type(given["id"], settings.get("id", "")).model_fields
    for name, field in fields.items():
        if isinstance(field.default, agent):
            settings[name] = _role(loaders, field.default, dict(settings.get(name) or {}), given)
    return settings


def _role(loaders: Any, declared: Any, own: Json, given: Json) -> Json:
    """Return the settings of one agent of an environment."""
    if declared.runtime.type == CLOUD:
        own.setdefault("runtime", {"type": HERE})
    if declared.harness is None and loaders.default_harness_id(given["id"]) == OWN_HARNESS:
        own.setdefault("harness", {"id": CHAT_HARNESS})
    if declared.max_turns is None:
        own.setdefault("max_turns", given["maxTurns"])
    # An agent that has used its time up is stopped, and what it did is scored.
    seconds = max(1.0, given["deadline"] - time.monotonic())
    own["timeout"] = {"rollout": seconds, **(own.get("timeout") or {})}
    return own


class _Tasks:
    """The tasks of a taskset by their places. Those that were needed are kept: some tasksets load for long."""

    def __init__(self, tasks: Iterable[Any]) -> None:
        self._rest: Iterator[Any] = iter(tasks)
        self._loaded: list[Any] = []

    def at(self, index: int) -> Any:
        """Return a task. Raises `IndexError`."""
        self._loaded += itertools.islice(self._rest, max(0, index + 1 - len(self._loaded)))
        if not 0 <= index < len(self._loaded):
            raise IndexError(f"the record's field task is {index}, and the taskset has {len(self._loaded)} tasks")
        return self._loaded[index]


_known: dict[tuple[str, str], _Tasks] = {}


def _tasks(given: Json) -> _Tasks:
    """Return the tasks of a taskset that this process may have loaded before."""
    name = given["id"], repr(given["args"])
    if name not in _known:
        _known[name] = _Tasks(_environment(given).taskset)
    return _known[name]


def _metrics(episode: Any) -> dict[str, float]:
    """Return the environment's metrics, and what it has traced of the model's turns."""
    found: dict[str, float] = {}
    for trace in episode.traces:
        for name, value in trace.metrics.items():
            if value is not None and math.isfinite(value) and len(name) <= MOST_METRIC_NAME:
                found[name] = float(value)
    found = dict(list(found.items())[:MOST_METRICS])
    calls = [call for trace in episode.traces for call in _answered(trace)]
    used = [call.usage.completion_tokens for call in calls if call.usage is not None]
    return found | {"turns": float(len(calls)), "trace_turns": float(len(calls)), "trace_tokens": float(sum(used))}


def _answered(trace: Any) -> list[Any]:
    """Return the calls of the model that it answered."""
    return [call for call in trace.calls if call.error is None]


def _is_limit(error: Any) -> bool:
    """Say whether the gateway refused a turn because the episode has no further one."""
    return any(limit in error.message for limit in LIMITS)


def _is_away(trace: Any) -> bool:
    """Say whether the model did not answer when it was asked last."""
    error = trace.calls[-1].error if trace.calls else None
    return error is not None and error.status_code is not None and error.status_code >= AWAY


def _texts(errors: Iterable[Any]) -> str:
    return "; ".join(f"{error.type}: {error.message}" for error in errors)


def task_of(record: Mapping[str, Any]) -> int:
    """Return the place of a record's task in its taskset. Raises `ValueError`."""
    place = record.get("task")
    if not isinstance(place, int) or isinstance(place, bool) or place < 0:
        raise ValueError(f"the record's field task is {place!r:.100}; the place of a task, from 0, would be right")
    return place
