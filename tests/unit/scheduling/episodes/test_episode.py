"""One attempt of an episode: turns, siblings, retries, limits, versions and ends."""

import pytest

from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.protocols.turns import RequestNumber
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules, Versions
from rljob_runtime.scheduling.episodes.limits import EARLY_SECONDS, Limit, Limits
from rljob_runtime.scheduling.episodes.node import ROOT, NodeKind
from rljob_runtime.scheduling.episodes.turns import Generate, InProgress, Recorded, Refused, may_answer, turn_seed
from tests.support.episodes import LENGTH, STOP, RecordingEngine, ask, opened


def episode(versions: Versions = Versions.MIXED, **limits: float) -> Episode:
    return Episode(EpisodeRules(Limits(**limits), versions), started=100.0)  # type: ignore[arg-type]


def test_two_turns_make_a_chain_of_given_and_sampled_nodes() -> None:
    one, engine = episode(), RecordingEngine()
    first = opened(one, (1, 2))
    assert [node.id for node in engine.answer(one, first, (1, 2), (3, 4), version=5)] == [1, 2]
    second = opened(one, (1, 2, 3, 4, 9))
    assert [node.id for node in engine.answer(one, second, (1, 2, 3, 4, 9), (6,), version=7)] == [3, 4]
    assert [(node.parent, node.kind, tuple(node.token_ids), node.version) for node in one.nodes.values()] == [
        (ROOT, NodeKind.GIVEN, (1, 2), None),
        (1, NodeKind.SAMPLED, (3, 4), 5),
        (2, NodeKind.GIVEN, (9,), None),
        (3, NodeKind.SAMPLED, (6,), 7),
    ]
    assert (one.stats.turns, one.stats.forks, one.stats.given_tokens, one.stats.sampled_tokens) == (2, 0, 3, 3)
    assert one.oldest_version == 5
    assert one.complete() == EpisodeEnd(EndState.COMPLETED)


def test_concurrent_requests_are_siblings_and_share_one_given_node() -> None:
    one, engine = episode(), RecordingEngine()
    turns = [opened(one, (1, 2)), opened(one, (1, 2)), opened(one, (1, 2, 8))]
    assert [turn.parent for turn in turns] == [1, 1, 4]
    assert one.stats.forks == 2
    assert [node.id for node in engine.answer(one, turns[2], (1, 2, 8), (5,))] == [1, 4, 5]
    assert [node.id for node in engine.answer(one, turns[0], (1, 2), (5,))] == [2]
    assert [node.id for node in engine.answer(one, turns[1], (1, 2), (5,))] == [3]
    assert [node.id for node in one.sampled] == [2, 3, 5]


def test_a_rewritten_history_forks_and_changes_no_node() -> None:
    one, engine = episode(), RecordingEngine()
    engine.answer(one, opened(one, (1, 2)), (1, 2), (3, 4))
    before = dict(one.nodes)
    turn = opened(one, (1, 2, 3, 5, 9))
    assert (turn.parent, one.stats.forks) == (3, 1)
    assert (one.nodes[3].parent, tuple(one.nodes[3].token_ids)) == (1, (3, 5, 9))
    engine.answer(one, turn, (1, 2, 3, 5, 9), (7,))
    assert {id: one.nodes[id] for id in before} == before


def test_a_retry_gets_the_former_turn_and_samples_nothing() -> None:
    one, engine = episode(turns=1), RecordingEngine()
    turn = opened(one, (1,), digest="a")
    assert one.open(ask((1,), "a", retry=True), 1.0) == InProgress(turn)
    (_, node) = engine.answer(one, turn, (1,), (2,))
    assert one.open(ask((1,), "a", retry=True), 1.0) == Recorded(node)
    assert isinstance(one.open(ask((1,), "b", retry=True), 1.0), Refused), "an unknown request is a new one"
    assert (one.stats.retries, one.stats.turns) == (2, 1)


def test_the_retry_of_equal_requests_gets_the_newest() -> None:
    one, engine = episode(), RecordingEngine()
    for answer in ((2,), (3,)):
        engine.answer(one, opened(one, (1,), digest="a"), (1,), answer)
    turn = opened(one, (1,), digest="a")
    one.drop(turn.id)
    found = one.open(ask((1,), "a", retry=True), 1.0)
    assert isinstance(found, Recorded)
    assert found.node.token_ids == (3,)


@pytest.mark.parametrize("restored", [False, True])
def test_the_retry_of_a_numbered_request_gets_its_own_turn(restored: bool) -> None:
    one, engine = episode(), RecordingEngine()
    for digest, answer in (("a#5e.0", 2), ("a#5e.1", 3), ("a#5e.2", 4)):
        engine.answer(one, opened(one, (1,), digest=digest), (1,), (answer,))
    if restored:
        one = Episode(one.rules, 0.0, one.nodes.values())
    found = {digest: one.open(ask((1,), digest, retry=True), 1.0) for digest in ("a#5e.0", "a#5e.1", "a#5e.2", "a")}
    said = {digest: tuple(was.node.token_ids) for digest, was in found.items() if isinstance(was, Recorded)}
    assert said == {"a#5e.0": (2,), "a#5e.1": (3,), "a#5e.2": (4,), "a": (4,)}
    assert isinstance(one.open(ask((1,), "a#5e.3", retry=True), 1.0), Generate)


def test_the_first_request_of_a_series_gets_the_newest_turn_of_others() -> None:
    """A new gateway does not know what was asked before it."""
    one, engine = episode(), RecordingEngine()
    for digest, answer in (("a", 2), ("a#5e.0", 3), ("a#5e.1", 4)):
        engine.answer(one, opened(one, (1,), digest=digest), (1,), (answer,))
    found = one.open(ask((1,), "a#6f.0", retry=True), 1.0)
    assert isinstance(found, Recorded)
    assert found.node.token_ids == (4,)
    assert isinstance(one.open(ask((1,), "a#6f.1", retry=True), 1.0), Generate), "another request than the lost one"


def test_the_first_of_concurrent_requests_may_come_last() -> None:
    one = episode()
    second, first = opened(one, (1,), digest="a#5e.1"), one.open(ask((1,), "a#5e.0", retry=True), 0.0)
    assert isinstance(first, Generate)
    assert first.turn.id != second.id


FIRST, SECOND = RequestNumber("5e", 0), RequestNumber("5e", 1)
OTHER_FIRST, OTHER_SECOND = RequestNumber("6f", 0), RequestNumber("6f", 1)


@pytest.mark.parametrize(
    ("made", "asked", "first_run", "rerun"),
    [
        (SECOND, None, True, True),
        (None, None, True, True),
        (SECOND, SECOND, True, True),
        (SECOND, FIRST, False, False),
        (FIRST, SECOND, False, False),
        (FIRST, OTHER_FIRST, True, True),
        (SECOND, OTHER_FIRST, True, False),
        (SECOND, OTHER_SECOND, False, True),
        (None, FIRST, True, True),
        (None, SECOND, False, False),
    ],
)
def test_which_turn_may_answer_a_retry(made, asked, first_run: bool, rerun: bool) -> None:
    assert [may_answer(made, asked, runs_again) for runs_again in (False, True)] == [first_run, rerun]


def test_a_dropped_turn_of_a_numbered_request_is_opened_again() -> None:
    one = episode()
    turn = opened(one, (1,), digest="a#5e.1")
    assert one.open(ask((1,), "a#5e.1", retry=True), 1.0) == InProgress(turn)
    one.drop(turn.id)
    assert isinstance(one.open(ask((1,), "a#5e.1", retry=True), 1.0), Generate)


def test_a_dropped_turn_costs_no_turn_and_no_fork() -> None:
    one, engine = episode(turns=2, forks=1), RecordingEngine()
    engine.answer(one, opened(one, (1,)), (1,), (2,))
    for _ in range(3):
        turn = opened(one, (1,))
        assert (one.stats.turns, one.stats.forks) == (2, 1)
        one.drop(turn.id)
        one.drop(turn.id)
    assert (one.stats.turns, one.stats.forks, one.open_turns) == (1, 0, [])
    assert isinstance(one.open(ask((1,), retry=True), 0.0), Recorded)


def test_a_turn_that_was_cut_is_never_extended() -> None:
    one, engine = episode(), RecordingEngine()
    engine.answer(one, opened(one, (1,)), (1,), (2, 3), finish=LENGTH)
    turn = opened(one, (1, 2, 3, 9))
    assert [node.id for node in one.tree.path(turn.parent)] == [1, 3]
    assert tuple(one.nodes[3].token_ids) == (2, 3, 9)


def test_results_that_come_late_or_twice_change_nothing() -> None:
    one, engine = episode(), RecordingEngine()
    turn, other, last = opened(one, (1,)), opened(one, (1,)), opened(one, (1,))
    assert len(engine.answer(one, turn, (1,), (2,))) == 2
    one.drop(other.id)
    assert engine.answer(one, turn, (1,), (4,)) == ()
    assert engine.answer(one, other, (1,), (5,)) == ()
    one.complete()
    assert engine.answer(one, last, (1,), (6,)) == ()
    assert (one.stats.late, [tuple(node.token_ids) for node in one.sampled]) == (3, [(2,)])
    assert one.open(ask((1,)), 1.0) == Refused("the episode has ended: completed")


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({"turns": 2}, Limit.TURNS),
        ({"tokens": 6}, Limit.TOKENS),
        ({"seconds": 30.0}, Limit.SECONDS),
        ({"forks": 0}, Limit.FORKS),
    ],
)
def test_a_limit_refuses_turns_and_is_the_reason_of_the_end(limits, limit) -> None:
    one, engine = episode(**limits), RecordingEngine()
    engine.answer(one, opened(one, (1, 2), 129.0), (1, 2), (3,))
    pending = opened(one, (1, 2, 3, 4), 129.0)
    refused = one.open(ask((1, 2, 9) if limit is Limit.FORKS else (1, 2, 3, 4, 5, 6)), 130.0)
    assert refused == Refused(f"the episode's limit of {limit} was reached", limit)
    assert isinstance(one.open(ask((1, 2, 3, 4)), 0.0), Refused), "a limit that was reached stays reached"
    assert engine.answer(one, pending, (1, 2, 3, 4), (5,)), "open turns are still committed"
    end = one.complete()
    assert (end.state, end.limit, end.reason) == (EndState.TRUNCATED, limit, f"the limit of {limit} was reached")


def test_the_token_limit_bounds_what_a_turn_may_sample() -> None:
    one, engine = episode(tokens=5), RecordingEngine()
    turn = opened(one, (1, 2))
    assert turn.most_tokens == 3
    with pytest.raises(ValueError, match="3 are allowed"):
        one.commit(turn.id, (3,) * 4, (-1.0,) * 4, 1, STOP)
    engine.answer(one, turn, (1, 2), (3, 4, 5), finish=LENGTH)
    assert one.complete().limit is Limit.TOKENS


def test_a_last_turn_that_ends_at_the_token_limit_by_itself_completes() -> None:
    one, engine = episode(tokens=3), RecordingEngine()
    engine.answer(one, opened(one, (1, 2)), (1, 2), (3,))
    assert one.complete() == EpisodeEnd(EndState.COMPLETED)


@pytest.mark.parametrize(
    ("stated", "turns", "seconds", "ends"),
    [
        (Limit.TURNS, 2, 1.0, Limit.TURNS),
        (Limit.TURNS, 1, 1.0, None),
        (Limit.SECONDS, 1, 30.0, Limit.SECONDS),
        (Limit.SECONDS, 1, 30.0 - EARLY_SECONDS, Limit.SECONDS),
        (Limit.SECONDS, 1, 29.0 - EARLY_SECONDS, None),
        (Limit.TOKENS, 1, 1.0, Limit.TOKENS),
        (Limit.FORKS, 2, 30.0, None),
    ],
)
def test_a_harness_states_the_limit_that_ended_it(
    stated: Limit, turns: int, seconds: float, ends: Limit | None
) -> None:
    one, engine = episode(turns=2, seconds=30.0, tokens=100), RecordingEngine()
    for number in range(turns):
        engine.answer(one, opened(one, (1, number), 100.0), (1, number), (2,))
    assert one.reach(stated, seconds) == (ends is not None)
    state = EndState.COMPLETED if ends is None else EndState.TRUNCATED
    assert one.complete("why") == EpisodeEnd(state, limit=ends, detail="" if ends is None else "why")


def test_limits_that_there_are_not_end_no_harness() -> None:
    one = episode()
    assert not any(one.reach(limit, 1e9) for limit in Limit)


def test_the_limit_that_refused_a_turn_is_the_reason_whatever_is_stated() -> None:
    one, engine = episode(turns=1, seconds=30.0), RecordingEngine()
    engine.answer(one, opened(one, (1,), 101.0), (1,), (2,))
    assert isinstance(one.open(ask((1, 2, 3)), 102.0), Refused)
    assert one.reach(Limit.SECONDS, 30.0)
    assert one.complete().limit is Limit.TURNS


def test_a_single_version_is_that_of_the_first_turn() -> None:
    one, engine = episode(Versions.SINGLE), RecordingEngine()
    with pytest.raises(ValueError, match="needs the version"):
        one.open(ask((1,)), 0.0)
    first, second = opened(one, (1,), version=4), opened(one, (1,), version=5)
    assert (first.version, second.version) == (4, 4)
    with pytest.raises(ValueError, match="version 5; 4 would be right"):
        engine.answer(one, second, (1,), (2,), version=5)
    engine.answer(one, second, (1,), (2,), version=4)
    again = Episode(one.rules, 0.0, one.nodes.values())
    assert opened(again, (1, 2, 3), version=9).version == 4


def test_several_versions_are_each_turns_own_and_the_oldest_counts() -> None:
    one, engine = episode(), RecordingEngine()
    engine.answer(one, opened(one, (1,), version=6), (1,), (2,), version=6)
    engine.answer(one, opened(one, (1,), version=4), (1,), (2,), version=4)
    engine.answer(one, opened(one, (1,)), (1,), (2,), version=9)
    assert (one.oldest_version, [node.version for node in one.sampled]) == (4, [6, 4, 9])
    assert one.newest_version == 9
    assert one.rules.of_evaluation == EpisodeRules(one.rules.limits, Versions.SINGLE)


@pytest.mark.parametrize(
    ("tokens", "logprobs", "reason"),
    [
        ((), (), "at least one token"),
        ((1, 2), (-1.0,), "one logprob a token"),
        ((1,), (float("nan"),), "not finite"),
    ],
)
def test_an_invalid_answer_is_refused_and_the_turn_stays_open(tokens, logprobs, reason) -> None:
    one = episode()
    turn = opened(one, (1,))
    with pytest.raises(ValueError, match=reason):
        one.commit(turn.id, tokens, logprobs, 1, STOP)
    assert one.open_turns == [turn]
    assert one.commit(turn.id, (1,), (-1.0,), 1, STOP)


def test_a_request_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        episode().open(ask(()), 0.0)


def test_a_failure_of_ours_is_no_completed_episode() -> None:
    one, engine = episode(), RecordingEngine()
    engine.answer(one, opened(one, (1,)), (1,), (2,))
    end = one.abort(AbortCause.TOOL_SERVER, "it closed the connection")
    assert (end.state, end.reason) == (EndState.ABORTED, "tool server: it closed the connection")
    assert one.complete() is end, "the first end counts"


def test_an_agent_that_never_calls_the_model_is_aborted() -> None:
    one = episode(tokens=2)
    opened(one, (1,))
    assert isinstance(one.open(ask((1, 2)), 0.0), Refused)
    end = one.complete()
    assert (end.state, end.cause) == (EndState.ABORTED, AbortCause.NO_TURN)
    assert end.reason.endswith("after the limit of tokens was reached")


def test_a_restored_episode_goes_on_where_its_journal_ends() -> None:
    one, engine = episode(turns=9), RecordingEngine()
    stored = list(engine.answer(one, opened(one, (1,), digest="a"), (1,), (2,)))
    lost = opened(one, (1, 2, 7), digest="b")
    stored += engine.answer(one, opened(one, (1, 5), digest="c"), (1, 5), (3,))
    again = Episode(one.rules, 100.0, stored, last_id=40)
    assert (again.stats.turns, again.stats.forks, again.stats.tokens) == (2, 1, 4)
    assert isinstance(again.open(ask((1,), "a", retry=True), 0.0), Recorded)
    decision = again.open(ask((1, 2, 7), "b", retry=True), 0.0)
    assert isinstance(decision, Generate), "what was not stored is sampled again"
    assert (decision.turn.parent, decision.turn.id) == (41, 42)
    assert engine.answer(again, lost, (1, 2, 7), (8,)) == (), "an id is not used again"


def test_turns_of_all_attempts_have_seeds_of_their_own() -> None:
    key = TrajectoryKey(PromptKey(0, 1), 2)
    seeds = [turn_seed(1, key, attempt, turn) for attempt in (1, 2, 3) for turn in range(50)]
    assert len(set(seeds)) == 150
    assert turn_seed(1, key, 1, 1) == seeds[1]
