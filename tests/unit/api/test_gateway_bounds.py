"""What a job's gateway holds follows from its open episodes, and the memory of the container from what it holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import RLJobSpec, load
from rljob_api.gateway_bounds import (
    CONTAINER_STEP,
    COPIES,
    LARGEST_AUTO_FACTOR,
    LEAST_BODIES,
    LEAST_CONTAINER,
    LEAST_HISTORIES,
    MIB,
    MOST_BODIES,
    MOST_HISTORIES,
    MOST_REQUESTS,
    MOST_UPDATES_OPEN,
    PROCESS_BYTES,
    SMALLEST,
    WAITING_BYTES,
    GatewayBounds,
    bounds_of,
    container_bytes,
    open_episodes,
)
from rljob_runtime.scheduling.asynchronous.experience_buffer import BufferLimits
from rljob_runtime.scheduling.round_planner.plans import PROMPT_FACTORS, RESPONSE_FACTORS
from tests.support.api.jobs import job

EVALUATION = {"name": "math", "prompts": {"reasoningGym": {"task": "basic_arithmetic"}}, "maxPrompts": 10}
TAIL = "spec.tailBatching"
LONG = {"maxTokensPerMicrobatch": 1 << 20}
"""Room for the longest sequence."""


def spec(places: int, **edits: Any) -> RLJobSpec:
    """A job of 4 x 8 responses whose one environment has so many places."""
    environment = {"name": "calc", "kind": "Agent", "command": ["true"], "episodesPerRunner": places}
    rounds = {"spec.algorithm": {"promptsPerRound": 4, "responsesPerPrompt": 8, **LONG}}
    return load(job({"spec.environments": [environment], **rounds, **edits})).spec


def sized(runners: int, tokens: int = 2048, **environment: Any) -> RLJobSpec:
    """A job whose runners can have 1,024 episodes each, all of them open."""
    one = {"name": "calc", "kind": "Agent", "command": ["true"], "runners": runners, "episodesPerRunner": 1024}
    return load(
        job(
            {
                "spec.environments": [{**one, **environment}],
                "spec.algorithm": {"promptsPerRound": 8192, "responsesPerPrompt": 8, **LONG},
                "spec.data.maxPromptTokens": 1,
                "spec.data.maxResponseTokens": tokens - 1,
            }
        )
    ).spec


@pytest.mark.parametrize(
    ("places", "edits", "expected"),
    [
        (5, {}, 5),
        (1024, {}, 32),
        (1024, {TAIL: {"enabled": True}}, 5 * 10),
        (1024, {TAIL: {"enabled": True, "promptFactor": 1.5, "responseFactor": 1}}, 6 * 8),
        (1024, {TAIL: {"enabled": "Auto", "promptFactor": "Auto", "responseFactor": "Auto"}}, 6 * 12),
        (1024, {TAIL: {"enabled": False, "promptFactor": "Auto"}}, 32),
        (1024, {"spec.mode": "Asynchronous"}, 4 * 32),
        (1024, {"spec.mode": "Asynchronous", "spec.experience": {"maxPrompts": 9}}, 72),
        (1024, {"spec.evaluation": [{**EVALUATION, "responsesPerPrompt": 3}]}, 32 + 30),
        (40, {"spec.evaluation": [{**EVALUATION, "responsesPerPrompt": 3}]}, 40),
        (5, {"spec.environments[0].maxRunners": 3}, 15),
    ],
)
def test_open_episodes_are_those_launched_for_which_runners_have_places(
    places: int, edits: dict[str, Any], expected: int
) -> None:
    assert open_episodes(spec(places, **edits)) == expected


def test_factors_and_updates_are_those_of_the_runtime() -> None:
    assert max(*PROMPT_FACTORS, *RESPONSE_FACTORS) == LARGEST_AUTO_FACTOR
    assert BufferLimits.of(8, None).most == MOST_UPDATES_OPEN * 8


@pytest.mark.parametrize(
    ("given", "requests", "bodies", "histories", "container"),
    [
        (spec(8), 512, LEAST_BODIES, LEAST_HISTORIES, LEAST_CONTAINER),
        (sized(2), 8192, LEAST_BODIES, LEAST_HISTORIES, 3840 * MIB),
        (sized(2, 32_768), 8192, 320 * MIB, 2048 * (2048 + 16 * 512 + 4 * 32_768), 5376 * MIB),
        (sized(2, 32_768, maxTurns=1000), 8192, 320 * MIB, 2048 * (2048 + 1000 * 512 + 4 * 32_768), 6400 * MIB),
        (sized(64, 131_072), MOST_REQUESTS, MOST_BODIES, MOST_HISTORIES, 32_512 * MIB),
    ],
    ids=["a small job", "many short episodes", "many long ones", "of many turns", "the most"],
)
def test_bounds_follow_from_open_episodes(
    given: RLJobSpec, requests: int, bodies: int, histories: int, container: int
) -> None:
    assert bounds_of(given) == GatewayBounds(requests, bodies, histories)
    assert container_bytes(given) == container


def test_limits_of_episodes_are_those_of_their_histories() -> None:
    wide = {"spec.data.maxPromptTokens": 100_000, "spec.algorithm.promptsPerRound": 1024}
    few = spec(1024, **wide, **{"spec.episode": {"maxTokens": 1000, "maxTurns": 2}})
    many = spec(1024, **wide)
    assert bounds_of(few).history_bytes == LEAST_HISTORIES < bounds_of(many).history_bytes
    assert bounds_of(few).body_bytes == LEAST_BODIES < bounds_of(many).body_bytes


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 1024)), min_size=1, max_size=3),
    st.integers(1, 16_384),
    st.integers(2, 64),
    st.integers(1, 1_000_000),
    st.sampled_from(["OnPolicy", "Asynchronous"]),
)
def test_more_episodes_never_lower_a_bound_and_the_sum_fits(
    environments: list[tuple[int, int]], prompts: int, responses: int, tokens: int, mode: str
) -> None:
    def bounds(prompts: int, more: int) -> GatewayBounds:
        ones = [
            {"name": f"e{index}", "kind": "Agent", "command": ["true"], "runners": runners, "episodesPerRunner": each}
            for index, (runners, each) in enumerate(environments[: len(environments) - more])
        ]
        edits = {
            "spec.mode": mode,
            "spec.environments": ones,
            "spec.algorithm": {"promptsPerRound": prompts, "responsesPerPrompt": responses, **LONG},
            "spec.data.maxResponseTokens": tokens,
        }
        found = load(job(edits)).spec
        assert bounds_of(found).memory <= container_bytes(found)
        assert container_bytes(found) % CONTAINER_STEP == 0
        return bounds_of(found)

    all_of_them = bounds(prompts, 0)
    fewer = [bounds(max(1, prompts // 2), 0)]
    if len(environments) > 1:
        fewer.append(bounds(prompts, 1))
    for one in fewer:
        assert one.requests <= all_of_them.requests
        assert one.body_bytes <= all_of_them.body_bytes
        assert one.history_bytes <= all_of_them.history_bytes


BOUNDS = st.builds(
    GatewayBounds,
    st.integers(1, MOST_REQUESTS),
    st.integers(1, MOST_BODIES),
    st.integers(1, MOST_HISTORIES),
)


@given(BOUNDS, st.integers(0, 40 << 30))
def test_bounds_fit_into_the_memory_of_the_container(wanted: GatewayBounds, memory: int) -> None:
    got = wanted.within(memory)
    assert got.memory <= max(memory, min(wanted.memory, SMALLEST.memory))
    for name in ("requests", "body_bytes", "history_bytes"):
        assert min(getattr(wanted, name), getattr(SMALLEST, name)) <= getattr(got, name) <= getattr(wanted, name)
    assert (got == wanted) or memory < wanted.memory


def test_a_container_with_half_of_the_memory_has_smaller_bounds() -> None:
    wanted = bounds_of(sized(2, 32_768))
    got = wanted.within(2048 * MIB)
    assert 1900 * MIB < got.memory <= 2048 * MIB
    assert SMALLEST.body_bytes < got.body_bytes < wanted.body_bytes
    assert wanted.within(1) == SMALLEST


def test_the_memory_counts_each_copy_of_a_body_and_each_request_that_waits() -> None:
    assert GatewayBounds(0, 0, 0).memory == PROCESS_BYTES
    assert GatewayBounds(1, 10, 100).memory == PROCESS_BYTES + WAITING_BYTES + 10 * COPIES + 100


def test_connections_and_calls_are_more_than_requests_that_wait_or_run() -> None:
    bounds = bounds_of(sized(2))
    assert bounds.connections > 2 * bounds.requests
    assert bounds.calls > 2 * bounds.requests
