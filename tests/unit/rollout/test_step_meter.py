"""Step meter: each step of an engine is counted with what it computed, whatever begins and ends between two polls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.perf_model.step_totals import NO_STEPS, StepTotals
from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.rollout.engines.base import EngineRequest, KvTicket, StepOutput
from rljob_runtime.rollout.step_meter import StepMeter


def request(name: str, tokens: int) -> EngineRequest:
    return EngineRequest(name, (1,) * tokens, 100)


def token(name: str, ends: bool = False, cached: int | None = 0) -> StepOutput:
    return StepOutput(name, (1,), (-0.5,), FinishReason.STOP if ends else None, cached)


def meter(**requests: int) -> StepMeter:
    """A meter whose engine has these requests, of so many tokens, and gave each its first token in 2 s."""
    found = StepMeter()
    found.start(request(name, tokens) for name, tokens in requests.items())
    found.step([token(name) for name in requests], len(requests), 2.0)
    return found


def test_the_first_tokens_of_requests_cost_their_prompts() -> None:
    found = meter(a=10, b=20)
    assert found.prefill == StepTotals(1, 2, 11 + 21, 30, 2.0, 10**2 + 20**2)
    assert found.decode == NO_STEPS


def test_a_step_that_gives_each_running_request_a_token_decodes() -> None:
    found = meter(a=10, b=20)
    found.step([token("a"), token("b")], 2, 0.5)
    found.step([token("a", ends=True), token("b")], 1, 0.25)
    found.step([token("b")], 1, 0.125)
    assert found.decode == StepTotals(3, 5, (12 + 22) + (13 + 23) + 24, 0, 0.875)
    assert found.prefill.steps == 1


def test_what_the_engine_held_of_a_prompt_is_not_computed() -> None:
    found = meter(a=10)
    found.start([request("b", 30)])
    found.step([token("a"), token("b", cached=24)], 2, 1.0)
    assert found.prefill == StepTotals(2, 3, 11 + 12 + 31, 10 + 6, 3.0, 10**2 + 30**2 - 24**2)


@pytest.mark.parametrize(
    ("outputs", "running"),
    [([], 1), ([token("a")], 2), ([token("a"), token("b")], 3)],
    ids=["no token", "a prompt is computed in parts", "one that runs waits"],
)
def test_a_step_in_which_a_running_request_gets_no_token_is_no_decode_step(outputs, running) -> None:
    found = meter(a=10, b=10)
    found.step(outputs, running, 1.0)
    assert found.decode == NO_STEPS
    assert (found.prefill.steps, found.prefill.seconds, found.prefill.prompt_tokens) == (2, 3.0, 20)


def test_a_preempted_request_is_computed_again() -> None:
    found = StepMeter()
    found.start([request("a", 10), request("b", 10)])
    found.step([token("a", cached=8), token("b", cached=8)], 2, 1.0)
    found.step([token("a")], 1, 1.0)
    assert found.decode.steps == 1
    found.step([token("a"), token("b", cached=8)], 2, 1.0)
    assert found.prefill.prompt_tokens == 2 + 2 + 11


def test_a_request_that_is_stopped_is_forgotten() -> None:
    found = meter(a=10, b=10)
    found.forget(["a"])
    found.step([token("b")], 1, 1.0)
    assert found.decode == StepTotals(1, 1, 12, 0, 1.0)
    found.start([request("a", 5)])
    found.step([token("a"), token("b")], 2, 1.0)
    assert found.prefill.prompt_tokens == 20 + 5, "the same name again is another request"


def test_steps_that_copy_kv_are_not_counted() -> None:
    """Their seconds are those of the copy, until the request has its first token."""
    found = meter(a=10)
    found.start([replace(request("b", 500), kv=KvTicket(Path("file"), "b", 480))])
    found.step([token("a")], 2, 60.0)
    found.step([token("a"), token("b", cached=480)], 2, 1.0)
    assert (found.decode.steps, found.prefill.steps) == (0, 1)
    found.step([token("a"), token("b")], 2, 1.0)
    assert found.decode == StepTotals(1, 2, 14 + 502, 0, 1.0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "step", "stop", "end"]), st.integers(0, 7), st.integers(1, 50)), max_size=40
)


@given(STEPS)
def test_all_steps_and_tokens_are_counted_once(moves: list[tuple[str, int, int]]) -> None:
    found, running, steps, tokens, asked, squares = StepMeter(), dict[str, int](), 0, 0, 0, 0
    for number, (move, place, length) in enumerate(moves):
        names = sorted(running)
        if move == "start":
            running[f"r{number}"] = length
            found.start([request(f"r{number}", length)])
        elif move == "stop" and names:
            name = names[place % len(names)]
            del running[name]
            found.forget([name])
        elif names:
            ends = names[place % len(names)] if move == "end" else None
            asked += sum(running.values())
            squares += sum(length**2 for length in running.values())
            running = dict.fromkeys(names, 0)
            found.step([token(name, ends=name == ends) for name in names], len(names) - (ends is not None), 0.5)
            steps, tokens = steps + 1, tokens + len(names)
            if ends is not None:
                del running[ends]
    both = found.decode + found.prefill
    assert (both.steps, both.sequences, both.prompt_tokens, both.seconds) == (steps, tokens, asked, 0.5 * steps)
    assert both.prompt_squares == squares
    assert found.decode.prompt_tokens == found.decode.prompt_squares == 0
