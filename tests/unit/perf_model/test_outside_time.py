"""Outside time: what responses take that spend a part of their time in tools, against an event model of them."""

from __future__ import annotations

from math import inf
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import EpisodesReport, RoundReport
from rljob_runtime.coordinator.reporting.outside_time import outside_time
from rljob_runtime.perf_model.engine_records import Request
from rljob_runtime.perf_model.engine_simulator import EngineSimulator
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.outside_time import INSIDE, OutsideTime, token_seconds
from rljob_runtime.scheduling.lending.gain import EngineSpeed

LATENCY = LatencyModel(((1, 0.010), (64, 0.030)), 1e-6, 0.0, 0.0, 0.0)


def played(responses: int, turns: int, tokens: int, tool_seconds: float) -> tuple[float, OutsideTime]:
    """Mean seconds of responses that alternate between an engine and a tool, and the time outside that they measure."""
    random, engine = Random(0), EngineSimulator(LATENCY, 1 << 30)
    inside = outside = now = 0.0
    arrivals = [(0.0, number, 0) for number in range(responses)]
    began, ends = dict[int, float](), list[float]()
    while len(ends) < responses:
        now = min(engine.next_event, min(arrivals, default=(inf,))[0])
        for one in engine.advance(now):
            number, turn = divmod(int(str(one.id)), turns)
            inside += now - began[number]
            if turn + 1 == turns:
                ends.append(now)
                continue
            outside += (waited := random.uniform(0.0, 2 * tool_seconds))
            arrivals.append((now + waited, number, turn + 1))
        for due in [one for one in arrivals if one[0] <= now]:
            arrivals.remove(due)
            _, number, turn = due
            began[number] = now
            context = 100 + turn * tokens
            engine.submit(now, [Request(number * turns + turn, context, tokens, cached_tokens=context)])
    return fmean(ends), OutsideTime(outside / (responses * turns * tokens), inside / (outside + inside))


@pytest.mark.parametrize("tool_seconds", [0.0, 0.2, 1.0, 10.0])
@pytest.mark.parametrize("responses", [1, 16, 64])
def test_a_response_takes_as_long_as_its_turns_and_tools(responses: int, tool_seconds: float) -> None:
    seconds, outside = played(responses, 10, 50, tool_seconds)
    speed = EngineSpeed(LATENCY, 1, 64, outside)
    assert speed.decode(responses, 100 * responses, 500) == pytest.approx(seconds, rel=0.12)
    assert outside.latency(LATENCY).decode(responses, 100 * responses, 500) == pytest.approx(seconds, rel=0.12)


@given(st.floats(0.0, 1.0), st.floats(0.01, 1.0), st.integers(1, 64), st.floats(0.0, 1e6))
def test_both_forms_of_the_latency_are_the_same(token: float, inside: float, running: int, context: float) -> None:
    outside = OutsideTime(token, inside)
    speed, latency = EngineSpeed(LATENCY, 1, 64, outside), outside.latency(LATENCY)
    assert speed.decode(running, context, 1) == pytest.approx(latency.step(running, context), rel=1e-3, abs=1e-4)


def test_responses_of_one_turn_are_inside() -> None:
    assert INSIDE.latency(LATENCY) is LATENCY
    assert INSIDE.responses(256) == 256
    assert outside_time([RoundReport(round=1, responses=8)]) == INSIDE


def test_reports_count_by_their_episodes() -> None:
    def report(responses: int, outside: float, model: float, tokens: int, slope: float) -> RoundReport:
        episodes = EpisodesReport(
            outside_seconds=outside, model_seconds=model, sampled_tokens=tokens, outside_token_seconds=slope
        )
        return RoundReport(round=1, responses=responses, episodes=episodes)

    found = outside_time([report(10, 3.0, 1.0, 500, 0.02), report(30, 1.0, 1.0, 1500, 0.0)])
    assert found.token_seconds == pytest.approx(10 / 2000)
    assert found.inside == pytest.approx(40 / 100)
    assert found.fixed == pytest.approx((60 - 10) / 40)


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0.0, 100.0)), min_size=1, max_size=20))
def test_no_length_goes_with_less_than_no_time_outside(responses: list[tuple[int, float]]) -> None:
    slope = token_seconds(responses)
    assert slope >= 0.0
    assert slope * fmean(one for one, _ in responses) <= fmean(its for _, its in responses) * (1 + 1e-9)


@pytest.mark.parametrize(("token", "inside"), [(-0.1, 1.0), (0.0, 0.0), (0.0, 1.1)])
def test_an_impossible_share_is_refused(token: float, inside: float) -> None:
    with pytest.raises(ValueError, match="a share above 0"):
        OutsideTime(token, inside)
