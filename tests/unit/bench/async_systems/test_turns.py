"""Engines whose responses have several turns: small cases by hand, and what holds whatever is played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_bench.async_systems.groups import Drawn, Prompts
from rljob_bench.async_systems.hardware import Hardware
from rljob_bench.async_systems.ideal import token_seconds
from rljob_bench.async_systems.systems import System, Window, play
from rljob_bench.async_systems.turns import EpisodeRequest, Stretch, TurnEngine, stretches
from rljob_runtime.perf_model.engine_records import Finish, Request
from rljob_runtime.perf_model.engine_simulator import EngineSimulator
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.workloads import Prompt, Response, Turn
from rljob_runtime.workloads.workload import ToolCall
from tests.support.examples import examples

SECOND = LatencyModel(((1.0, 1.0),), 0.0, 0.0, 0.0, 0.0)
"""A token a second for every sequence, whatever the batch; prefill takes no time."""
PREFILL = LatencyModel(((1.0, 1.0),), 0.0, 0.0, 1.0, 0.0)
"""The same, and a second for each token of a prefill."""
WIDE = LatencyModel(((1.0, 1.0), (2.0, 1.0), (100.0, 2.0)), 1e-4, 0.1, 1e-3, 0.0)

TWO = (Stretch(0, 3, 2.5), Stretch(7, 2))
"""Three tokens, a tool of 2.5 s that answers with four, and two tokens."""


def engine(latency: LatencyModel = SECOND, kv_tokens: int = 1000) -> TurnEngine:
    return TurnEngine(EngineSimulator(latency, kv_tokens))


def episode(turns: tuple[Stretch, ...] = TWO, name: str = "a", prompt: int = 10) -> EpisodeRequest:
    return EpisodeRequest(name, prompt, turns[-1].end, turns=turns)


def run(made: TurnEngine) -> list[Finish]:
    found: list[Finish] = []
    while (time := made.next_event) < float("inf"):
        found += made.advance(time)
    return found


# --- by hand ---


def test_a_response_waits_for_its_tool_outside_of_the_engine():
    made = engine()
    made.submit(0.0, [episode()])
    assert (made.load(2.5).running, made.progress(2.5)) == (1, {"a": 2})
    assert (made.load(4.0).running, made.progress(4.0)) == (0, {"a": 3})
    assert made.progress(6.5) == {"a": 4}
    assert run(made) == [Finish("a", 7.5)]
    assert made.load(8.0).generated_tokens == 5


def test_a_response_of_one_turn_is_the_engines_own():
    made, plain = engine(WIDE), EngineSimulator(WIDE, 1000)
    requests = [Request(name, 10 + name, 5 + 3 * name) for name in range(4)]
    made.submit(0.0, requests)
    plain.submit(0.0, requests)
    assert made.progress(4.2) == plain.progress(4.2)
    assert made.abort(5.1, [2]) == plain.abort(5.1, [2])
    assert run(made) == plain.drain()


@pytest.mark.parametrize(("kv_tokens", "computed"), [(1000, 10 + 4), (38, 10 + 17)])
def test_a_context_is_computed_again_where_the_cache_had_no_room_for_it(kv_tokens: int, computed: int):
    """Another response of 24 tokens fills the small cache while the tool runs."""
    made = engine(kv_tokens=kv_tokens)
    made.submit(0.0, [episode()])
    made.submit(3.5, [Request("b", 24, 10)])
    assert {finish.id for finish in run(made)} == {"a", "b"}
    assert made.load(50.0).prefill_tokens == computed + 24


def test_a_second_turn_computes_the_answer_of_its_tool_only():
    made = engine(PREFILL)
    made.submit(0.0, [episode()])
    (finish,) = run(made)
    assert finish.time == 10 + 3 + 2.5 + 4 + 2


@pytest.mark.parametrize(("at", "tokens", "computed", "end"), [(2.0, 2, 12, 7.5), (4.0, 3, 17, 7.5), (6.5, 8, 18, 7.5)])
def test_a_moved_response_keeps_its_tokens_and_the_wait_for_its_tool(at: float, tokens: int, computed: int, end: float):
    """In its first turn, while it waits, and in its second turn."""
    source, target = engine(), engine()
    source.submit(0.0, [episode()])
    (taken,) = source.abort(at, ["a"])
    assert taken.generated_tokens == tokens
    assert source.progress(at) == {}
    target.submit(at, [taken])
    assert run(source) == []
    assert run(target) == [Finish("a", end)]
    # In the first turn, the answers of its tool are computed in the second one.
    assert target.load(20.0).prefill_tokens == computed + (4 if at == 2.0 else 0)


def test_a_tool_whose_answer_has_no_token_is_waited_for_after_a_move():
    turns = (Stretch(0, 3, 2.0), Stretch(3, 2))
    source, target = engine(), engine()
    source.submit(0.0, [episode(turns)])
    (taken,) = source.abort(4.0, ["a"])
    target.submit(4.0, [taken])
    assert run(target) == [Finish("a", 3 + 2.0 + 2)]


def test_a_response_ends_with_the_turn_that_leaves_no_room():
    turns = (Turn(3, (ToolCall(1.0, 4), ToolCall(2.0, 5))), Turn(6, (ToolCall(9.0, 1),)), Turn(7))
    assert stretches(turns, 100) == (Stretch(0, 3, 2.0), Stretch(12, 6, 9.0), Stretch(19, 7))
    assert stretches(turns, 20) == (Stretch(0, 3, 2.0), Stretch(12, 6, 9.0), Stretch(19, 1))
    assert stretches(turns, 19) == (Stretch(0, 3, 2.0), Stretch(12, 6, 9.0))
    assert stretches(turns, 12) == (Stretch(0, 3, 2.0),)
    assert stretches(turns, 2) == (Stretch(0, 2, 2.0),)


# --- what always holds ---

TURNS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([0.0, 0.5, 3.0]), st.integers(0, 5)), min_size=1, max_size=4
)


def written(turns: Sequence[tuple[int, float, int]]) -> tuple[Turn, ...]:
    return tuple(Turn(tokens, (ToolCall(seconds, answer),)) for tokens, seconds, answer in turns)


@settings(max_examples=examples(80))
@given(
    drawn=st.lists(TURNS, min_size=1, max_size=4),
    moves=st.lists(st.tuples(st.floats(0.1, 40.0), st.integers(0, 3)), max_size=4),
)
def test_every_response_ends_once_after_its_tokens_and_its_tools(drawn, moves):
    engines = [engine(), engine()]
    paths = {name: stretches(written(turns), 1000) for name, turns in enumerate(drawn)}
    place = dict.fromkeys(paths, 0)
    engines[0].submit(0.0, [EpisodeRequest(name, 5, path[-1].end, turns=path) for name, path in paths.items()])
    ends: dict[int, float] = {}
    for at, name in sorted(moves):
        for one in engines:
            ends |= {finish.id: finish.time for finish in one.advance(at)}
        if name in paths and (taken := engines[place[name]].abort(at, [name])):
            place[name] = 1 - place[name]
            engines[place[name]].submit(at, taken)
    for one in engines:
        ends |= {finish.id: finish.time for finish in run(one)}
    assert ends.keys() == paths.keys()
    for name, path in paths.items():
        least = sum(one.tokens for one in path) + sum(one.seconds for one in path[:-1])
        # A request waits for the end of the step that it finds, and what moves in a step makes that token again.
        slack = len(path) + 2 * sum(moved == name for _, moved in moves)
        assert least - 1e-6 <= ends[name] <= least + slack + 1e-6
    made = sum(one.load(1000.0).generated_tokens for one in engines)
    assert made >= sum(one.tokens for path in paths.values() for one in path)


@dataclass(frozen=True)
class Written:
    """A workload of episodes by a list of them."""

    episodes: Sequence[Sequence[tuple[int, float, int]]]
    task: str = "written"

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt:
        chosen = (self.episodes[(7 * step + 3 * index + sample) % len(self.episodes)] for sample in range(responses))
        return Prompt(index, 4, tuple(Response(written(one)) for one in chosen))


@settings(max_examples=examples(20))
@given(system=st.sampled_from(System), episodes=st.lists(TURNS, min_size=1, max_size=5), kv=st.sampled_from([90, 5000]))
def test_every_system_trains_on_complete_contexts(system, episodes, kv):
    machine = Hardware(3, WIDE, kv, token_seconds=0.01, update_seconds=2.0, load_seconds=0.3, broadcast_seconds=0.2)
    prompts = Prompts(Written(episodes), 3, 3, 10, 50)
    outcome = play(system, machine, prompts, Window(0, 4))
    for update in outcome.updates:
        groups = [prompts[group.number] for group in update.groups]
        assert update.tokens == sum(complete(group) for group in groups)
    numbers = [group.number for update in outcome.updates for group in update.groups]
    assert len(set(numbers)) == len(numbers) == 12
    limit = machine.replicas / token_seconds(machine, [prompts[number] for number in range(21)])
    assert outcome.generation <= 1.3 * limit


def complete(group: Drawn) -> int:
    """Return the tokens of a prompt's contexts, turn by turn."""
    paths = group.turns or tuple((Stretch(0, tokens),) for tokens in group.response_tokens)
    return sum(group.prompt_tokens + path[-1].begin + path[-1].tokens for path in paths)


def test_a_batch_waits_for_the_longest_tool():
    episodes = [[(4, 30.0, 2), (3, 0.0, 0)], [(6, 0.0, 0)]]
    machine = replace(Hardware(2, SECOND, 10_000, token_seconds=0.0, update_seconds=1.0))
    outcome = play(System.SYNCHRONOUS, machine, Prompts(Written(episodes), 2, 2, 10, 50), Window(0, 1))
    assert outcome.updates[0].end == 4 + 30 + 3 + 1
