"""Rules of a job: those across fields, in Python.

A server checks as many of them as `schema.cel` can express; a test compares the results. Each rule is a generator of
`FieldError`s. `check` runs all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil

from rljob_api import constants as c
from rljob_api.errors import ABSENT, FieldError
from rljob_api.rules.algorithm import MAX_RESPONSES_PER_ROUND, check_algorithm
from rljob_api.rules.chat_template import check_chat_template
from rljob_api.rules.environments import check_environments
from rljob_api.rules.evaluation import check_evaluation
from rljob_api.rules.layouts import check_layouts, divides
from rljob_api.rules.sources import check_sources
from rljob_api.rules.templates import check_template, memory_limit
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.spec.accelerators import DEFAULT_RESOURCE
from rljob_api.spec.observers import check_observers
from rljob_api.spec.rewards import DEFAULT_PARALLELISM, FUNCTION_KINDS, CodeReward, RewardKind, present_path
from rljob_api.spec.training import AUTO, Mode

Errors = Iterator[FieldError]

MAX_TOKENS_PER_SEQUENCE = 1 << 20
MAX_ACCELERATORS = 1 << 14
MIN_HEARTBEAT_SECONDS = 0.05
REWARDS_OWN_BYTES = 512 << 20
WORKER_BYTES = 128 << 20


def check(job: RLJob) -> Errors:
    """Yield every mistake that types cannot express."""
    yield from _name(job)
    spec = job.spec
    for rule in (
        _size,
        _prompts,
        check_chat_template,
        _rewards,
        check_environments,
        check_evaluation,
        check_algorithm,
        _asynchronous,
        _techniques,
        _rollout,
        check_layouts,
        _accelerators,
        _volumes,
        _times,
    ):
        yield from rule(spec)
    yield from check_observers(spec.observers)
    for role, template in (
        (c.ROLE_TRAINER, spec.trainer.template),
        (c.ROLE_ROLLOUT, spec.rollout.template),
        (c.ROLE_COORDINATOR, spec.coordinator.template),
    ):
        accelerators, resource = spec.accelerators_of(role), spec.accelerator_of(role).resource
        ours = [c.MAIN_CONTAINER]
        if role == c.ROLE_COORDINATOR and spec.rewards_apart:
            ours.append(c.REWARDS_CONTAINER)
        if role == c.ROLE_COORDINATOR and spec.head_apart:
            ours.append(c.HEAD_CONTAINER)
        if role == c.ROLE_COORDINATOR and spec.environments:
            ours.append(c.GATEWAY_CONTAINER)
        found = list(check_template(f"spec.{role}.template", role, template, accelerators, resource, ours))
        yield from found
        if role == c.ROLE_COORDINATOR and not found:  # its form is right: one can look into it
            yield from _rewards_container(spec)


def _name(job: RLJob) -> Errors:
    name = job.metadata.name
    if len(name) > c.MAX_JOB_NAME_LENGTH:
        longest = f"<name>-{c.ROLE_COORDINATOR}-0-<incarnation>"
        yield FieldError(
            "metadata.name", name, f"must have at most {c.MAX_JOB_NAME_LENGTH} characters: pods are named {longest}"
        )
    if re.fullmatch(c.JOB_NAME_PATTERN, name) is None:
        yield FieldError(
            "metadata.name",
            name,
            "must be lower-case letters, digits and '-', begin with a letter and not end with '-': it names a Service",
        )


def _size(spec: RLJobSpec) -> Errors:
    yield from check_length(spec.to_json())


def check_length(text: str) -> Errors:
    """Yield a mistake for a spec that is too long as JSON."""
    length = len(text)
    if length > c.MAX_SPEC_LENGTH:
        advice = f"must have at most {c.MAX_SPEC_LENGTH} characters as JSON: mount large texts from a ConfigMap"
        yield FieldError("spec", f"{length} characters", advice)


def _prompts(spec: RLJobSpec) -> Errors:
    data = spec.data
    yield from check_sources(spec)
    if data.system_prompt is not None and not data.chat_template:
        yield FieldError(
            "spec.data.systemPrompt",
            data.system_prompt,
            "needs spec.data.chatTemplate: true; or put the text into the prompts",
        )
    total = data.max_prompt_tokens + data.max_response_tokens
    if total > MAX_TOKENS_PER_SEQUENCE:
        yield FieldError(
            "spec.data.maxResponseTokens",
            data.max_response_tokens,
            f"must be at most {MAX_TOKENS_PER_SEQUENCE} together with maxPromptTokens ({data.max_prompt_tokens})",
        )


def _rewards_container(spec: RLJobSpec) -> Errors:
    """Check that the programs fit into the container.

    A container that is out of memory ends, and its pod with it.
    """
    template, path = spec.coordinator.template, "spec.coordinator.template.spec"
    if not spec.rewards_apart:
        return
    if template.spec.get("shareProcessNamespace") is True:
        advice = "must be left out with rewards of kind Code or Python: they could read the coordinator's processes"
        yield FieldError(f"{path}.shareProcessNamespace", True, advice)
    limit = memory_limit(template.container(c.REWARDS_CONTAINER))
    codes = [reward.code or CodeReward() for reward in spec.rewards if reward.kind is RewardKind.CODE]
    needed = REWARDS_OWN_BYTES + sum(code.parallelism * code.memory_bytes for code in codes)
    further = (reward.parallelism - DEFAULT_PARALLELISM for reward in spec.rewards if reward.parallelism is not None)
    needed += WORKER_BYTES * sum(max(0, workers) for workers in further)
    if limit is not None and limit < needed:
        advice = (
            f"must be at least {needed}: parallelism x memoryBytes of the rewards of kind Code, "
            f"{REWARDS_OWN_BYTES >> 20}Mi for the processes that run them, and {WORKER_BYTES >> 20}Mi for each worker "
            f"of a function past {DEFAULT_PARALLELISM}"
        )
        names = [container.get("name") for container in template.spec["containers"]]
        where = f"{path}.containers[{names.index(c.REWARDS_CONTAINER)}]"
        yield FieldError(f"{where}.resources.limits[memory]", limit, advice)


def _rewards(spec: RLJobSpec) -> Errors:
    names = [reward.name for reward in spec.rewards]
    prompts = spec.data.prompts if spec.data.prompts and spec.data.prompts.kinds else None
    for index, reward in enumerate(spec.rewards):
        path = f"spec.rewards[{index}]"
        if reward.name in names[:index]:
            yield FieldError(f"{path}.name", reward.name, "must be unique in spec.rewards")
        if reward.kind is RewardKind.PYTHON and reward.function is None:
            yield FieldError(f"{path}.function", ABSENT, "is required for kind Python: module:function")
        if reward.kind is not RewardKind.PYTHON and reward.function is not None:
            yield FieldError(f"{path}.function", reward.function, "is for kind Python only; leave it out")
        if reward.function is not None and (moved := present_path(reward.function)) != reward.function:
            yield FieldError(f"{path}.function", reward.function, f"has moved; write {moved}")
        if reward.kind is RewardKind.JUDGE and reward.judge is None:
            yield FieldError(f"{path}.judge", ABSENT, "is required for kind Judge: its url and model")
        if reward.kind is not RewardKind.JUDGE and reward.judge is not None:
            yield FieldError(f"{path}.judge", reward.judge.to_dict(), "is for kind Judge only; leave it out")
        if reward.kind is not RewardKind.CODE and reward.code is not None:
            yield FieldError(f"{path}.code", reward.code.to_dict(), "is for kind Code only; leave it out")
        if reward.code is not None and reward.code.program is not None and "{response}" not in reward.code.program:
            yield FieldError(f"{path}.code.program", reward.code.program, "must have {response} in it")
        if reward.judge is not None and reward.judge.prompt is not None and "{response}" not in reward.judge.prompt:
            yield FieldError(f"{path}.judge.prompt", reward.judge.prompt, "must have {response} in it")
        if reward.kind is RewardKind.REASONING_GYM and prompts is not None and prompts.reasoning_gym is None:
            yield FieldError(f"{path}.kind", reward.kind.value, "needs prompts from spec.data.prompts.reasoningGym")
        if reward.parallelism is not None and reward.kind.value not in FUNCTION_KINDS:
            own = f"set {reward.kind.value.lower()}.parallelism instead"
            own = "leave it out" if reward.kind is RewardKind.ENVIRONMENT else own
            advice = f"is for kinds {', '.join(FUNCTION_KINDS)}; {own}"
            yield FieldError(f"{path}.parallelism", reward.parallelism, advice)
        if reward.range.min >= reward.range.max:
            yield FieldError(f"{path}.range.min", reward.range.min, f"must be less than max ({reward.range.max:g})")
        if reward.timeout.min_seconds > reward.timeout.max_seconds:
            yield FieldError(
                f"{path}.timeout.minSeconds",
                reward.timeout.min_seconds,
                f"must be at most maxSeconds ({reward.timeout.max_seconds:g})",
            )
    if not spec.rewards:
        yield from _no_rewards(spec)
    elif all(reward.weight == 0 for reward in spec.rewards):
        yield FieldError("spec.rewards", 0, "must hold at least one weight other than 0: there would be no gradient")


def _no_rewards(spec: RLJobSpec) -> Errors:
    """Check that every environment gives a reward in place of `spec.rewards`."""
    without = [environment.name for environment in spec.environments if not environment.gives_reward]
    if without:
        advice = f"is required: how responses are scored; or a reward of each environment, which {without[0]} lacks"
        yield FieldError("spec.rewards", ABSENT, advice)
    elif not spec.environments:
        yield FieldError("spec.rewards", ABSENT, "is required: how responses are scored")


def _asynchronous(spec: RLJobSpec) -> Errors:
    capacity, wanted = spec.experience.max_prompts, spec.algorithm.prompts_per_round
    if capacity is not None and capacity < wanted:
        yield FieldError(
            "spec.experience.maxPrompts",
            capacity,
            f"must be at least algorithm.promptsPerRound ({wanted}): an update takes that many",
        )
    if spec.mode is not Mode.ASYNCHRONOUS:
        return
    for field, enabled, why in (
        ("tailBatching", spec.tail_batching.enabled, "no update waits for long responses there"),
        ("streamTraining", spec.stream_training.enabled, "training runs during generation anyway"),
        (
            "adaptiveTensorParallel",
            spec.adaptive_tensor_parallel.enabled,
            "a machine there may run weights that its relay does not hold any more, and engines of another size load "
            "from the relay",
        ),
    ):
        if enabled is not False:
            yield FieldError(f"spec.{field}.enabled", enabled, f"must be false in mode Asynchronous: {why}")


def _techniques(spec: RLJobSpec) -> Errors:
    algorithm, tail, stream = spec.algorithm, spec.tail_batching, spec.stream_training
    # With Auto, the job never chooses a factor that is too large.
    prompts, responses = (
        ceil((1 if factor == AUTO else factor) * count)
        for factor, count in (
            (tail.prompt_factor, algorithm.prompts_per_round),
            (tail.response_factor, algorithm.responses_per_prompt),
        )
    )
    if tail.enabled is not False and prompts * responses > MAX_RESPONSES_PER_ROUND:
        yield FieldError(
            "spec.tailBatching.promptFactor",
            tail.prompt_factor,
            f"must be smaller, or responseFactor, or the round: {prompts} prompts x {responses} responses would be "
            f"launched, and a round holds at most {MAX_RESPONSES_PER_ROUND}",
        )
    if stream.enabled is True and algorithm.minibatches > 1:
        yield FieldError(
            "spec.streamTraining.enabled",
            True,
            f"must be false while algorithm.minibatches is {algorithm.minibatches}: gradients that are computed during "
            "generation belong to the weights before the round, and only its first update starts from those",
        )
    if stream.min_completed > stream.max_completed:
        yield FieldError(
            "spec.streamTraining.minCompleted",
            stream.min_completed,
            f"must be at most maxCompleted ({stream.max_completed:g})",
        )


def _rollout(spec: RLJobSpec) -> Errors:
    rollout = spec.rollout
    if rollout.smallest > rollout.machines:
        yield FieldError(
            "spec.rollout.minMachines", rollout.min_machines, f"must be at most machines ({rollout.machines})"
        )
    if rollout.largest < rollout.machines:
        yield FieldError(
            "spec.rollout.maxMachines", rollout.max_machines, f"must be at least machines ({rollout.machines})"
        )
    accelerators = rollout.largest * rollout.accelerators_per_machine
    if accelerators > MAX_ACCELERATORS:
        yield FieldError(
            "spec.rollout.acceleratorsPerMachine",
            rollout.accelerators_per_machine,
            f"must be at most {MAX_ACCELERATORS // rollout.largest}: {rollout.largest} machines may have at most "
            f"{MAX_ACCELERATORS} accelerators together",
        )
    if rollout.accelerators_per_machine and rollout.slots_per_machine is not None:
        yield FieldError(
            "spec.rollout.slotsPerMachine",
            rollout.slots_per_machine,
            "is for machines without accelerators; leave it out, or set acceleratorsPerMachine to 0",
        )
    if rollout.slots % rollout.tensor_parallel_size:
        yield FieldError(
            "spec.rollout.tensorParallelSize",
            rollout.tensor_parallel_size,
            f"{divides(rollout)}: tensor parallelism stays inside a machine",
        )


def _accelerators(spec: RLJobSpec) -> Errors:
    trainer, rollout, old = spec.trainer, spec.rollout, spec.scheduling.accelerator_resource
    for path, accelerator, counts in (
        (
            "spec.accelerator",
            spec.accelerator,
            {
                "spec.trainer.acceleratorsPerReplica": trainer.accelerators_per_replica,
                "spec.rollout.acceleratorsPerMachine": rollout.accelerators_per_machine,
            },
        ),
        ("spec.trainer.accelerator", trainer.accelerator, {"acceleratorsPerReplica": trainer.accelerators_per_replica}),
        ("spec.rollout.accelerator", rollout.accelerator, {"acceleratorsPerMachine": rollout.accelerators_per_machine}),
    ):
        if accelerator is None:
            continue
        if len(accelerator.given) != 1:
            found = ", ".join(accelerator.given) or ABSENT
            yield FieldError(path, found, "must be exactly one of resource, deviceClass, claimTemplate, or kind: None")
        if not any(counts.values()):
            advice = f"is for pods with accelerators: set {' or '.join(counts)}, or leave it out"
            yield FieldError(path, accelerator.to_dict(), advice)
    # Earlier versions filled in the default, so beside spec.accelerator it has no meaning.
    if spec.accelerator is not None and old not in (DEFAULT_RESOURCE, spec.accelerator.resource):
        yield FieldError(
            "spec.scheduling.acceleratorResource", old, "must be left out: spec.accelerator takes its place"
        )


def _volumes(spec: RLJobSpec) -> Errors:
    checkpoint = spec.checkpoint
    if checkpoint.volume_claim_name is not None and checkpoint.empty_dir is not None:
        yield FieldError(
            "spec.checkpoint.emptyDir",
            checkpoint.empty_dir.to_dict(),
            "excludes volumeClaimName; leave one of them out",
        )


def _times(spec: RLJobSpec) -> Errors:
    policy, backoff = spec.run_policy, spec.failure_policy.backoff
    startup, active = policy.startup_deadline_seconds, policy.active_deadline_seconds
    if startup is not None and active is not None and startup > active:
        yield FieldError(
            "spec.runPolicy.startupDeadlineSeconds", startup, f"must be at most activeDeadlineSeconds ({active})"
        )
    if backoff.initial_seconds > backoff.max_seconds:
        yield FieldError(
            "spec.failurePolicy.backoff.initialSeconds",
            backoff.initial_seconds,
            f"must be at most maxSeconds ({backoff.max_seconds:g})",
        )
    relay = spec.relay
    if relay.heartbeat_seconds < MIN_HEARTBEAT_SECONDS:
        yield FieldError(
            "spec.relay.heartbeatSeconds", relay.heartbeat_seconds, f"must be at least {MIN_HEARTBEAT_SECONDS}"
        )
    if relay.heartbeat_seconds * 2 > relay.rebuild_timeout_seconds:
        yield FieldError(
            "spec.relay.heartbeatSeconds",
            relay.heartbeat_seconds,
            f"must be at most half of rebuildTimeoutSeconds ({relay.rebuild_timeout_seconds:g})",
        )
