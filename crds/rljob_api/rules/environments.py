"""Environment rules: those of `spec.environments` and `spec.episode`."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api import constants as c
from rljob_api.errors import ABSENT, FieldError
from rljob_api.rules.templates import check_template
from rljob_api.spec import RLJobSpec
from rljob_api.spec.environments import Environment, EnvironmentKind, EpisodeReset
from rljob_api.spec.rewards import RewardKind

Errors = Iterator[FieldError]


def check_environments(spec: RLJobSpec) -> Errors:
    """Yield the mistakes of environments and of the episodes' limits."""
    names = [environment.name for environment in spec.environments]
    for index, environment in enumerate(spec.environments):
        path = f"spec.environments[{index}]"
        if environment.name in names[:index]:
            yield FieldError(f"{path}.name", environment.name, "must be unique in spec.environments")
        yield from _kind(path, environment)
        yield from _of_tools(path, environment)
        yield from _reset(path, environment)
        yield from _runners(path, environment)
        for place, tool in enumerate(environment.tools or ()):
            if (tool.function is None) == (tool.mcp is None):
                shown = ABSENT if tool.mcp is None else "function, mcp"
                yield FieldError(f"{path}.tools[{place}]", shown, "must be exactly one of function and mcp")
        # Its accelerators are what the template requests: the spec has no number of them.
        yield from check_template(f"{path}.template", c.ROLE_ENVIRONMENT, environment.template, 0, None)
    yield from _rewards(spec)
    yield from _reward_names(spec)
    yield from _limits(spec)


def _kind(path: str, environment: Environment) -> Errors:
    """Check that an environment has the field of its kind, and not that of another."""
    fields = {
        EnvironmentKind.TOOLS: ("tools", environment.tools, "what the model may call"),
        EnvironmentKind.OPEN_ENV: ("openEnv", environment.open_env, "the environment's server"),
        EnvironmentKind.VERIFIERS: ("verifiers", environment.verifiers, "the taskset and its settings"),
    }
    for kind, (field, value, what) in fields.items():
        if environment.kind is kind and value is None:
            yield FieldError(f"{path}.{field}", ABSENT, f"is required for kind {kind}: {what}")
        if environment.kind is not kind and value is not None:
            yield FieldError(f"{path}.{field}", environment.to_dict()[field], f"is for kind {kind} only; leave it out")
    yield from _agent(path, environment)


def _agent(path: str, environment: Environment) -> Errors:
    """Check that an agent has one of command and function, and that no other kind has any."""
    written = environment.to_dict()
    given = [field for field in ("command", "function") if field in written]
    if environment.kind is not EnvironmentKind.AGENT:
        for field in given:
            advice = f"is for kind {EnvironmentKind.AGENT} only; leave it out"
            yield FieldError(f"{path}.{field}", written[field], advice)
    elif not given:
        advice = f"is required for kind {EnvironmentKind.AGENT}: the program and its arguments; or function"
        yield FieldError(f"{path}.command", ABSENT, advice)
    elif len(given) > 1:
        advice = "excludes command; leave one of them out"
        yield FieldError(f"{path}.function", environment.function, advice)


def _of_tools(path: str, environment: Environment) -> Errors:
    """Check that no other kind has a field of Tools."""
    written = environment.to_dict()
    for field in ("state", "toolSeconds"):
        if field in written and environment.kind is not EnvironmentKind.TOOLS:
            yield FieldError(
                f"{path}.{field}", written[field], f"is for kind {EnvironmentKind.TOOLS} only; leave it out"
            )


def _reset(path: str, environment: Environment) -> Errors:
    reset = environment.reset
    if reset is not None and environment.kind is not EnvironmentKind.AGENT:
        yield FieldError(f"{path}.reset", reset.value, f"is for kind {EnvironmentKind.AGENT} only; leave it out")
    if environment.checkout is not None and reset is not EpisodeReset.GIT_RESTORE:
        advice = f"needs reset: {EpisodeReset.GIT_RESTORE}; or leave it out"
        yield FieldError(f"{path}.checkout", environment.checkout, advice)
    if reset is EpisodeReset.POD and environment.episodes_per_runner != 1:
        advice = f"must be 1 with reset: {EpisodeReset.POD}"
        yield FieldError(f"{path}.episodesPerRunner", environment.episodes_per_runner, advice)


def _runners(path: str, environment: Environment) -> Errors:
    runners = environment.runners
    if environment.fewest_runners > runners:
        yield FieldError(f"{path}.minRunners", environment.min_runners, f"must be at most runners ({runners})")
    if environment.most_runners < runners:
        yield FieldError(f"{path}.maxRunners", environment.max_runners, f"must be at least runners ({runners})")


def _rewards(spec: RLJobSpec) -> Errors:
    """Check that rules of kind Environment have a reward to count. Sources may leave them out, by `rewards`."""
    without = [environment.name for environment in spec.environments if not environment.gives_reward]
    advice = ""
    if len(without) == len(spec.environments):
        advice = "needs an environment in spec.environments that gives a reward: a kind other than Tools, or a reward"
    elif without and spec.data.sources is None:
        advice = f"needs a reward of each environment, which {without[0]} lacks"
    for index, reward in enumerate(spec.rewards):
        if reward.kind is RewardKind.ENVIRONMENT and advice:
            yield FieldError(f"spec.rewards[{index}].kind", reward.kind.value, advice)


def _reward_names(spec: RLJobSpec) -> Errors:
    """Keep the name of what an environment gives: in reports and in the audit it must mean one thing."""
    for index, reward in enumerate(spec.rewards if spec.environments else ()):
        if reward.name == c.ENVIRONMENT_TERM and reward.kind is not RewardKind.ENVIRONMENT:
            advice = "is the reward that an environment gives; choose another name"
            yield FieldError(f"spec.rewards[{index}].name", reward.name, advice)


def _limits(spec: RLJobSpec) -> Errors:
    episode, data = spec.episode, spec.data
    if episode is None:
        return
    if not spec.environments:
        yield FieldError("spec.episode", episode.to_dict(), "needs spec.environments; or leave it out")
    longest = data.max_prompt_tokens + data.max_response_tokens
    if episode.max_tokens is not None and episode.max_tokens > longest:
        advice = f"must be at most data.maxPromptTokens + data.maxResponseTokens ({longest}): engines hold no more"
        yield FieldError("spec.episode.maxTokens", episode.max_tokens, advice)
