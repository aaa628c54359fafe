"""A program runs again: it receives the turns that it had, or its attempt ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules, Versions
from rljob_runtime.scheduling.episodes.limits import Limit, Limits
from rljob_runtime.scheduling.episodes.rerun import MadeTurn, Rerun
from rljob_runtime.scheduling.episodes.turns import (
    Decision,
    Diverged,
    Generate,
    InProgress,
    Recorded,
    Refused,
    TurnRequest,
)
from tests.support.episodes import RecordingEngine, ask, opened

LOST = AbortCause.ENVIRONMENT
Tokens = tuple[int, ...]
Program = Callable[[Sequence[Tokens]], Tokens | None]
"""Returns the next request of a program that has these answers; None at its end."""


def play(
    episode: Episode, engine: RecordingEngine, program: Program, most: int = 100, again: Sequence[int] = ()
) -> list[int]:
    """Run a program for so many turns; return the ids of its turns. The engine answers with the number of the turn.

    `again`: places of the requests whose answer is lost, so that they are sent again."""
    answers: list[Tokens] = []
    turns: list[int] = []
    while len(turns) < most and (request := program(answers)) is not None:
        match episode.open(ask(request), 0.0, 1):
            case Generate(turn):
                engine.answer(episode, turn, request, (turn.id, 7))
                turns.append(turn.id)
            case Recorded(node):
                turns.append(node.id)
            case Diverged(reason):
                episode.diverge(reason)
                break
            case other:
                raise AssertionError(other)
        if len(turns) in again:
            assert episode.open(ask(request, retry=True), 0.0, 1) == Recorded(episode.nodes[turns[-1]])
        answers.append(tuple(episode.nodes[turns[-1]].token_ids))
    return turns


def chain(length: int, tool: int = 3) -> Program:
    """A program that asks for so many turns, each after the answer before and what a tool said."""

    def program(answers: Sequence[Tokens]) -> Tokens | None:
        if len(answers) == length:
            return None
        return (1, *(token for answer in answers for token in (*answer, tool)))

    return program


def begun(turns: int = 3, limits: Limits | None = None) -> tuple[Episode, RecordingEngine]:
    """An episode whose program was lost after some turns, and runs again."""
    episode, engine = Episode(EpisodeRules(limits or Limits()), 0.0), RecordingEngine()
    play(episode, engine, chain(turns))
    episode.run_again(LOST)
    return episode, engine


def test_a_program_that_asks_the_same_gets_the_same_and_goes_on() -> None:
    episode, engine = begun(3)
    first = [node.id for node in episode.sampled]
    assert episode.unrepeated == tuple(first)
    turns = play(episode, engine, chain(5))
    assert turns[:3] == first
    assert len(engine.emitted) == 5, "no turn is sampled twice"
    assert (episode.unrepeated, episode.stats.turns, episode.stats.forks) == ((), 5, 0)
    assert episode.complete().state is EndState.COMPLETED


def test_equal_requests_get_their_turns_in_order_then_a_new_one() -> None:
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    for token in (5, 6):
        engine.answer(episode, opened(episode, (1,)), (1,), (token,))
    first, second = (node.id for node in episode.sampled)
    episode.run_again(LOST)
    found = [episode.open(ask((1,)), 0.0) for _ in range(3)]
    assert found[:2] == [Recorded(episode.nodes[first], True), Recorded(episode.nodes[second], True)]
    assert isinstance(found[2], Generate)


def test_a_retry_gets_the_turn_of_its_request_and_not_the_next_equal_one() -> None:
    """The answer to the first request was lost on its way. Else the second one would be sampled again."""
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    for token in (5, 6):
        engine.answer(episode, opened(episode, (1,)), (1,), (token,))
    first, second = (node.id for node in episode.sampled)
    episode.run_again(LOST)
    found = [episode.open(ask((1,), retry=retry), 0.0) for retry in (False, True, False, True)]
    assert found == [
        Recorded(episode.nodes[first], True),
        Recorded(episode.nodes[first]),
        Recorded(episode.nodes[second], True),
        Recorded(episode.nodes[second]),
    ]


def test_equal_requests_of_a_program_that_runs_again_get_their_own_turns() -> None:
    """They may arrive in another order. A number that is not left, which a new gateway counts, is any of them."""
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    for digest, token in (("a#5e.1", 5), ("a", 6), ("a#5e.2", 7)):
        engine.answer(episode, opened(episode, (1,), digest=digest), (1,), (token,))
    episode.run_again(LOST)
    found = [episode.open(ask((1,), digest), 0.0) for digest in ("a", "a#6f.1", "a#6f.5")]
    said = [tuple(one.node.token_ids) for one in found if isinstance(one, Recorded) and one.repeated]
    assert said == [(6,), (5,), (7,)]


def test_retries_of_a_rerun_get_the_turns_that_their_requests_repeated() -> None:
    """The first one comes last: it is not given what was repeated for another one."""
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    for digest, token in (("a#5e.0", 5), ("a#5e.1", 6)):
        engine.answer(episode, opened(episode, (1,), digest=digest), (1,), (token,))
    episode.run_again(LOST)
    asked = [("a#6f.1", False), ("a#6f.0", True), ("a#6f.1", True), ("a#6f.0", True)]
    found = [episode.open(ask((1,), digest, retry=retry), 0.0) for digest, retry in asked]
    said = [(tuple(one.node.token_ids), one.repeated) for one in found if isinstance(one, Recorded)]
    assert said == [((6,), True), ((5,), True), ((6,), False), ((5,), False)]


def test_a_retry_whose_first_request_was_lost_gets_the_turn_too() -> None:
    episode, _ = begun(1)
    (only,) = (node.id for node in episode.sampled)
    assert episode.open(ask((1,), retry=True), 0.0) == Recorded(episode.nodes[only], True)


def test_a_turn_under_way_is_waited_for() -> None:
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    turn = opened(episode, (1,))
    episode.run_again(LOST)
    assert episode.open(ask((1,)), 0.0) == InProgress(turn, True)
    engine.answer(episode, turn, (1,), (5,))
    assert episode.unrepeated == ()
    assert episode.complete().state is EndState.COMPLETED


def test_a_turn_that_was_given_up_is_not_missed() -> None:
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    turn = opened(episode, (1,))
    episode.run_again(LOST)
    episode.drop(turn.id)
    assert episode.unrepeated == ()
    again = opened(episode, (1,))
    engine.answer(episode, again, (1,), (5,))
    assert episode.complete().state is EndState.COMPLETED


@pytest.mark.parametrize(
    ("turns", "request_", "decision"),
    [
        (2, ask((2,)), Diverged),
        (2, ask((1, 2)), Diverged),
        (2, ask((1,), "other parameters"), Diverged),
        (0, ask((2,)), Generate),
    ],
    ids=["another prompt", "a longer prompt", "another body", "no turn before"],
)
def test_a_first_request_that_is_another_one_ends_the_attempt(
    turns: int, request_: TurnRequest, decision: type[Decision]
) -> None:
    episode, _ = begun(turns)
    found = episode.open(request_, 0.0)
    assert isinstance(found, decision)
    if isinstance(found, Diverged):
        end = episode.diverge(found.reason)
        assert (end.state, end.cause) == (EndState.ABORTED, LOST)
        assert "asks for something else than turn 2" in end.detail


def test_a_tool_that_answers_otherwise_ends_the_attempt_before_a_turn() -> None:
    episode, engine = begun(3)
    emitted = len(engine.emitted)
    assert len(play(episode, engine, chain(3, tool=4))) == 1
    assert (len(engine.emitted), episode.end and episode.end.cause) == (emitted, LOST)


def test_a_program_that_ends_earlier_has_no_reward() -> None:
    episode, engine = begun(3)
    play(episode, engine, chain(2))
    end = episode.complete()
    assert (end.state, end.cause) == (EndState.ABORTED, LOST)
    assert "did not ask for turn" in end.detail


def test_the_cause_is_that_of_the_loss() -> None:
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    play(episode, engine, chain(1))
    episode.run_again(AbortCause.RUNNER_LEFT)
    assert episode.complete().cause is AbortCause.RUNNER_LEFT


def test_a_new_branch_beside_repeated_ones_is_no_divergence() -> None:
    """As of a sub-agent whose first turn was not stored."""
    episode, engine = begun(2)
    play(episode, engine, chain(2))
    assert isinstance(episode.open(ask((9,)), 0.0), Generate)


def test_a_limit_refuses_new_turns_and_no_repeated_one() -> None:
    episode, engine = begun(3, Limits(turns=3))
    assert isinstance(episode.open(ask((1,)), 0.0), Recorded)
    play_on = chain(4)
    answers = [tuple(node.token_ids) for node in episode.sampled]
    for count in (1, 2):
        request = play_on(answers[:count])
        assert request is not None
        assert isinstance(episode.open(ask(request), 0.0), Recorded)
    request = play_on(answers)
    assert request is not None
    assert episode.open(ask(request), 0.0) == Refused("the episode's limit of turns was reached", Limit.TURNS)
    assert len(engine.emitted) == 3
    assert episode.complete().state is EndState.TRUNCATED


def test_a_program_that_is_lost_again_repeats_all_turns() -> None:
    episode, engine = begun(3)
    play(episode, engine, chain(5), most=1)
    episode.run_again(LOST)
    assert len(episode.unrepeated) == 3
    play(episode, engine, chain(5), most=4)
    episode.run_again(LOST)
    assert len(episode.unrepeated) == 4
    play(episode, engine, chain(5))
    assert (len(engine.emitted), episode.complete().state) == (5, EndState.COMPLETED)


def test_a_restarted_coordinator_knows_what_was_repeated() -> None:
    episode, engine = begun(3)
    repeated = play(episode, engine, chain(3), most=2)
    again = Episode(episode.rules, 0.0, episode.nodes.values())
    again.run_again(LOST, repeated)
    assert again.unrepeated == episode.unrepeated


# --- any program ---

STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=8)
"""Of a program: which answer a request goes on from (or a beginning of its own), and what a tool says."""


def drawn(steps: Sequence[tuple[int, int]]) -> Program:
    """A program with forks and sub-agents: each request follows from the answers before it."""
    asked: dict[int, Tokens] = {}

    def program(answers: Sequence[Tokens]) -> Tokens | None:
        number = len(answers)
        if number == len(steps):
            return None
        place, tool = steps[number]
        known = place % (number + 1)
        asked[number] = (10 + tool,) if known == number else (*asked[known], *answers[known], tool)
        return asked[number]

    return program


PLACES = st.lists(st.integers(0, 8), max_size=3)


@given(STEPS, PLACES, PLACES, st.sampled_from(Versions))
def test_a_program_lost_at_any_turns_has_the_turns_of_one_that_is_not(
    steps: list[tuple[int, int]], losses: list[int], again: list[int], versions: Versions
) -> None:
    episode, engine = Episode(EpisodeRules(versions=versions), 0.0), RecordingEngine()
    for most in losses:
        play(episode, engine, drawn(steps), most, again)
        episode.run_again(LOST)
    turns = play(episode, engine, drawn(steps), again=again)
    calm, other = Episode(EpisodeRules(versions=versions), 0.0), RecordingEngine()
    assert turns == play(calm, other, drawn(steps))
    assert engine.emitted == other.emitted
    assert episode.complete().state is EndState.COMPLETED
    assert replace(episode.stats, retries=0) == calm.stats


@given(STEPS, STEPS, st.integers(0, 8))
def test_a_program_is_trained_on_only_if_it_asked_for_every_turn(
    steps: list[tuple[int, int]], others: list[tuple[int, int]], most: int
) -> None:
    episode, engine = Episode(EpisodeRules(), 0.0), RecordingEngine()
    play(episode, engine, drawn(steps), most)
    episode.run_again(LOST)
    before = len(engine.emitted)
    turns = play(episode, engine, drawn(others))
    end = episode.complete()
    if end.state is EndState.COMPLETED:
        assert sorted(turns) == [node.id for node in episode.sampled]
    else:
        assert (end.cause, bool(before)) == (LOST, True)


def test_turns_are_found_by_their_bodies_each_once() -> None:
    rerun = Rerun([MadeTurn(4, "b", 2), MadeTurn(2, "a", 0), MadeTurn(6, "a", 0)], LOST)
    assert rerun.left == (2, 4, 6)
    assert (rerun.misses(0), rerun.misses(2), rerun.misses(4)) == (2, 4, None)
    assert [rerun.repeat("a"), rerun.repeat("a"), rerun.repeat("a")] == [2, 6, None]
    rerun.forget(4)
    assert rerun.left == ()
