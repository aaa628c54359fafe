"""Config: what a runner is told, from a JSON file and the environment's variables.

    {"url": "http://job-gateway:8000", "keyFile": "/keys/calc", "root": "/work",
     "environment": {"name": "calc", "kind": "Tools", "tools": [{"function": "calculator.py:add"}], "maxTurns": 4}}

`environment` is an entry of the job's `spec.environments`. RLJOB_ENV_URL, RLJOB_ENV_KEY_FILE and RLJOB_ENV_EPISODES
replace what the file says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOOLS, AGENT, OPEN_ENV, VERIFIERS = "Tools", "Agent", "OpenEnv", "Verifiers"
PROCESS, GIT_RESTORE, POD = "Process", "GitRestore", "Pod"
"""What each episode of an agent has of its own: its process and HOME, a working copy of a checkout too, or its pod."""
MOST_EPISODES = 4096
SCORE_SECONDS = 5.0
"""Time of a scoring beyond that of the reward: the conversation is read before."""
SHARED = (
    "name",
    "kind",
    "reward",
    "maxTurns",
    "timeoutSeconds",
    "runners",
    "episodesPerRunner",
    "variables",
    "rewardSeconds",
)
"""Options of every kind. Some are for the coordinator only."""


class BadConfig(Exception):
    """The runner is told what it cannot do. The message names the field."""


@dataclass(frozen=True)
class Tool:
    """A Python function, or the address of an MCP server."""

    function: str | None = None
    mcp_url: str | None = None


@dataclass(frozen=True)
class VerifiersConfig:
    """An environment of the `verifiers` package: its taskset, and its settings as the package reads them."""

    id: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvironmentConfig:
    """An environment: its kind and the kind's options."""

    name: str
    kind: str
    tools: tuple[Tool, ...] = ()
    command: tuple[str, ...] = ()
    function: str | None = None
    """Of an agent: a Python function instead of a command."""
    reset: str = PROCESS
    checkout: str = "."
    """The folder of the git checkout that `GIT_RESTORE` copies, relative to the root."""
    open_env_url: str | None = None
    """The address of an OpenEnv server."""
    verifiers: VerifiersConfig | None = None
    reward: str | None = None
    """A Python function that scores an episode."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment that the foreign code gets."""
    max_turns: int = 16
    episodes: int = 8
    tool_seconds: float = 30.0
    """Longest call of a tool."""
    reward_seconds: float = 20.0
    """Longest call of the reward function, and of the scoring by a `verifiers` environment."""

    @property
    def overrun_seconds(self) -> float:
        """Time after an episode's deadline in which it is scored. The coordinator waits 5 s longer for the report."""
        twice = self.kind == VERIFIERS and self.reward is not None
        return self.reward_seconds * (2 if twice else 1) + SCORE_SECONDS


@dataclass(frozen=True)
class Config:
    """A runner's settings. `root`: the folder that paths of functions and commands are relative to."""

    url: str
    key_file: Path
    root: Path
    environment: EnvironmentConfig
    heartbeat_seconds: float = 2.0
    wait_seconds: float = 20.0
    patience_seconds: float = 300.0
    """For so long a gateway that is away is asked again."""
    grace_seconds: float = 10.0
    """Time in which a runner that is told to end reports its episodes."""
    pod_folder: Path | None = None
    """For reset `POD`: a folder that lives as long as the pod, and longer than its containers."""


def load_config(path: str | None, variables: Mapping[str, str]) -> Config:
    """Return the settings. Raises `BadConfig`."""
    path = path or variables.get("RLJOB_ENV_CONFIG")
    if not path:
        raise BadConfig("name the file with the settings, as argument or in RLJOB_ENV_CONFIG")
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadConfig(f"{path}: {error}") from error
    given = _object(given, path)
    for name, variable in (("url", "RLJOB_ENV_URL"), ("keyFile", "RLJOB_ENV_KEY_FILE")):
        if variables.get(variable):
            given[name] = variables[variable]
    environment = _object(given.get("environment"), "environment")
    if variables.get("RLJOB_ENV_EPISODES"):
        count = variables["RLJOB_ENV_EPISODES"]
        environment["episodesPerRunner"] = int(count) if count.isdigit() else count
    return _config(given, environment, Path(path).resolve().parent)


def _config(given: dict[str, Any], environment: dict[str, Any], folder: Path) -> Config:
    seconds = {
        "heartbeatSeconds": "heartbeat_seconds",
        "waitSeconds": "wait_seconds",
        "patienceSeconds": "patience_seconds",
        "graceSeconds": "grace_seconds",
    }
    _known(given, ("url", "keyFile", "root", "environment", "podFolder", *seconds), "")
    found = _environment(environment)
    return Config(
        url=_text(given, "url"),
        key_file=folder / _text(given, "keyFile"),
        root=folder / _text(given, "root", "."),
        environment=found,
        pod_folder=folder / _text(given, "podFolder") if found.reset == POD else None,
        **{own: _seconds(given, name, "") for name, own in seconds.items() if name in given},
    )


def _environment(given: dict[str, Any]) -> EnvironmentConfig:
    where = "environment."
    kind = _text(given, "kind", where=where)
    own: dict[str, tuple[str, ...]] = {
        TOOLS: ("tools", "toolSeconds"),
        AGENT: ("command", "function", "reset", "checkout"),
        OPEN_ENV: ("openEnv",),
        VERIFIERS: ("verifiers",),
    }
    if kind not in own:
        raise BadConfig(f"environment.kind is {kind!r}; {', '.join(own)} would be right")
    _known(given, (*SHARED, *own[kind]), where)
    function, reward = (
        None if given.get(name) is None else _text(given, name, where=where) for name in ("function", "reward")
    )
    found = EnvironmentConfig(
        name=_text(given, "name", where=where),
        kind=kind,
        tools=tuple(_tool(one, f"environment.tools[{index}]") for index, one in enumerate(given.get("tools") or ())),
        command=tuple(given.get("command") or ()),
        function=function,
        reset=_reset(given),
        checkout=_text(given, "checkout", EnvironmentConfig.checkout, where),
        open_env_url=_open_env(given) if kind == OPEN_ENV else None,
        verifiers=_verifiers(given) if kind == VERIFIERS else None,
        reward=reward,
        variables=_object(given.get("variables") or {}, "environment.variables"),
        max_turns=_whole(given, "maxTurns", EnvironmentConfig.max_turns, 1 << 20),
        episodes=_whole(given, "episodesPerRunner", EnvironmentConfig.episodes, MOST_EPISODES),
        tool_seconds=_seconds(given, "toolSeconds", where, EnvironmentConfig.tool_seconds),
        reward_seconds=_seconds(given, "rewardSeconds", where, EnvironmentConfig.reward_seconds),
    )
    if kind == AGENT and bool(found.command) == bool(found.function):
        raise BadConfig("environment: an Agent has either command or function")
    if found.reset == POD and found.episodes != 1:
        raise BadConfig(f"environment.episodesPerRunner is {found.episodes}; 1 would be right with reset {POD}")
    if not all(isinstance(one, str) for one in (*found.command, *found.variables.values())):
        raise BadConfig("environment: command and variables are texts")
    return found


def _reset(given: dict[str, Any]) -> str:
    reset = _text(given, "reset", PROCESS, "environment.")
    if reset not in (PROCESS, GIT_RESTORE, POD):
        raise BadConfig(f"environment.reset is {reset!r:.100}; {PROCESS}, {GIT_RESTORE} or {POD} would be right")
    if reset != GIT_RESTORE and "checkout" in given:
        raise BadConfig(f"environment.checkout is for reset {GIT_RESTORE} only; leave it out")
    return reset


def _tool(given: Any, where: str) -> Tool:
    tool = _object(given, where)
    _known(tool, ("function", "mcp"), f"{where}.")
    if len(tool) != 1:
        raise BadConfig(f"{where}: either function or mcp would be right")
    if "function" in tool:
        return Tool(function=_text(tool, "function", where=f"{where}."))
    return Tool(mcp_url=_text(_object(tool["mcp"], f"{where}.mcp"), "url", where=f"{where}.mcp."))


def _open_env(given: dict[str, Any]) -> str:
    server = _object(given.get("openEnv"), "environment.openEnv")
    _known(server, ("url",), "environment.openEnv.")
    return _text(server, "url", where="environment.openEnv.")


def _verifiers(given: dict[str, Any]) -> VerifiersConfig:
    where = "environment.verifiers"
    environment = _object(given.get("verifiers"), where)
    _known(environment, ("id", "args"), f"{where}.")
    return VerifiersConfig(
        _text(environment, "id", where=f"{where}."), _object(environment.get("args") or {}, f"{where}.args")
    )


def _object(value: Any, where: str) -> dict[str, Any]:
    """Return an object without its empty fields: they count as absent."""
    if not isinstance(value, dict):
        raise BadConfig(f"{where}: an object would be right, not a value of type {type(value).__name__}")
    return {name: one for name, one in value.items() if one is not None}


def _known(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise BadConfig(f"{where}{name} is not known; {', '.join(sorted(known))} are")


def _text(given: Mapping[str, Any], name: str, default: str | None = None, where: str = "") -> str:
    value = given.get(name, default)
    if not isinstance(value, str) or not value:
        raise BadConfig(f"{where}{name}: a text would be right, not {value!r:.100}")
    return value


def _whole(given: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = given.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise BadConfig(f"environment.{name} is {value!r}; 1 to {most} would be right")
    return value


def _seconds(given: Mapping[str, Any], name: str, where: str, default: float = 0.0) -> float:
    value = given.get(name, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e6:
        raise BadConfig(f"{where}{name} is {value!r}; seconds above 0 would be right")
    return float(value)


def read_key(path: Path) -> str:
    """Return the runner key in a file. Raises `BadConfig`."""
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise BadConfig(f"keyFile: {error}") from error
    if not key:
        raise BadConfig(f"keyFile: {os.fspath(path)} is empty")
    return key
