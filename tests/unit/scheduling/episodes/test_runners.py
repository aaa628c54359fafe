"""Runner leases: who runs which attempt, and who is silent."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rljob_runtime.scheduling.episodes.runner_loads import RunnerLoad
from rljob_runtime.scheduling.episodes.runners import RunnerLeases

PATIENCE = 10.0


def test_the_attempt_that_waits_longest_is_taken_first_by_its_environment():
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    for number, environment in [(1, "a"), (2, "b"), (3, "a")]:
        leases.offer(number, environment, float(number))
    assert leases.take("b", "r", 4.0) == [2]
    assert [leases.take("a", "r", 4.0) for _ in range(3)] == [[1], [3], []]
    assert leases.runner(3) == "r"
    assert leases.runner(9) is None


@pytest.mark.parametrize(
    ("waiting", "most", "runners", "taken"),
    [(5, 9, 1, 5), (5, 3, 1, 3), (5, 9, 2, 3), (5, 2, 2, 2), (1, 9, 4, 1), (0, 9, 3, 0)],
)
def test_each_of_several_runners_takes_its_part_of_what_waits(waiting, most, runners, taken):
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    for number in range(waiting):
        leases.offer(number, "a", 0.0)
    assert leases.take("a", "r", 1.0, most, runners) == list(range(taken))
    assert all(leases.runner(number) == "r" for number in range(taken))
    assert leases.take("a", "last", 2.0, 99) == list(range(taken, waiting))


def test_an_attempt_that_is_not_wanted_waits_and_asks_for_no_runner():
    unwanted = {1, 2}
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE, lambda attempt: attempt not in unwanted)
    for number in (1, 2, 3):
        leases.offer(number, "a", 0.0)
    assert leases.take("a", "r", 1.0, 9, 1) == [3]
    assert leases.unserved(100.0, 60.0) == []
    unwanted.remove(2)
    assert leases.unserved(100.0, 60.0) == ["a"]
    assert leases.take("a", "r", 101.0, 9, 1) == [2]
    leases.end(1)
    unwanted.clear()
    assert leases.take("a", "r", 102.0, 9, 1) == []


@pytest.mark.parametrize(
    ("decided", "looks", "expected"),
    [
        (None, [(0.0, True), (PATIENCE, True), (PATIENCE + 1, True)], [[], [], [(1, 0.0)]]),
        (None, [(0.0, True), (5.0, None), (6.0, True), (PATIENCE + 6, True)], [[], [], [], []]),
        (None, [(0.0, False), (PATIENCE + 1, False), (PATIENCE + 9, True)], [[], [], [(1, PATIENCE + 9)]]),
        (True, [(1.0, None)], [[]]),
        (False, [(1.0, False), (2.0, True)], [[], [(1, 2.0)]]),
        (False, [(1.0, None), (2.0, True)], [[], []]),
    ],
    ids=[
        "for long",
        "again meanwhile",
        "busy for long",
        "immediately",
        "at its next turn",
        "generated before its next turn",
    ],
)
def test_an_attempt_that_no_engine_generates_leaves_its_runner(decided, looks, expected):
    """Each look: when, and whether the attempt waits for a turn; None if an engine generates it."""
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    leases.offer(1, "a", 0.0)
    assert not leases.leave(1, True), "no runner has it"
    assert leases.take("a", "r", 0.0) == [1]
    if decided is not None:
        assert leases.leave(1, decided) == decided
    found = [leases.leavers({} if waits is None else {1: waits}, now) for now, waits in looks]
    assert found == expected


def test_runners_keep_their_attempts_only_while_they_send_heartbeats():
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    for number, runner in [(1, "silent"), (2, "lives")]:
        leases.offer(number, "a", 0.0)
        assert leases.take("a", runner, 0.0) == [number]
    leases.begin([1, 2], 0.0)
    assert leases.heartbeat("a", "lives", [2], 8.0) == []
    assert leases.lapsed(PATIENCE) == []
    assert leases.lapsed(PATIENCE + 0.1) == [1]
    leases.end(1)
    assert leases.lapsed(18.0) == []
    assert leases.lapsed(18.1) == [2]


def test_until_a_runner_receives_an_attempt_none_is_silent():
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    leases.adopt(1, "a", 0.0)
    assert not leases.has_begun(1), "its runner did not call"
    for number in (2, 3, 4):
        leases.offer(number, "a", 0.0)
    assert leases.take("a", "r", 0.0, 9) == [2, 3, 4]
    leases.end(4)
    assert leases.lapsed(99.0) == [1]
    assert leases.heartbeat("a", "r", [3], 100.0) == []
    assert [number for number in range(1, 5) if leases.has_begun(number)] == [3]
    leases.begin([2, 4], 100.0)
    assert [number for number in range(1, 5) if leases.has_begun(number)] == [2, 3]
    assert leases.lapsed(100.0 + PATIENCE) == [1]
    assert leases.lapsed(100.1 + PATIENCE) == [1, 2, 3]


def test_a_runner_is_told_which_attempts_are_not_its_own():
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    leases.offer(1, "a", 0.0)
    leases.take("a", "one", 0.0)
    assert leases.heartbeat("a", "two", [1, 7], 1.0) == [1, 7]
    assert leases.runner(1) == "one"
    leases.end(1)
    assert leases.heartbeat("a", "one", [1], 2.0) == [1]


def test_an_adopted_attempt_belongs_to_the_first_runner_that_claims_it():
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    leases.adopt(4, "a", 0.0)
    assert leases.runner(4) is None
    assert leases.heartbeat("a", "r", [4], 5.0) == []
    assert leases.heartbeat("a", "s", [4], 5.0) == [4]
    assert leases.lapsed(15.1) == [4]


def test_no_runner_of_another_environment_has_an_attempt():
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    leases.adopt(4, "a", 0.0)
    leases.offer(5, "a", 0.0)
    assert leases.take("b", "r", 1.0) == []
    assert leases.heartbeat("b", "r", [4, 5], 1.0) == [4, 5]
    assert not leases.may_have(4, "b", "r")
    assert leases.claims_refused == 2, "no runner holds attempt 5"
    assert leases.runner(4) is None
    assert leases.may_have(4, "a", "s")


def test_what_is_handed_over_has_another_name_and_is_the_next_one():
    leases: RunnerLeases[str] = RunnerLeases(PATIENCE)
    for name in ("one", "other"):
        leases.offer(name, "a", 0.0)
    assert leases.take("a", "lost", 2.0) == ["one"]
    leases.begin(["one"], 2.0)
    assert leases.heartbeat("a", "lost", ["one"], 5.0) == []
    assert leases.last_contact("one") == 5.0
    leases.transfer("one", "one resumed", 16.0)
    assert leases.heartbeat("a", "lost", ["one", "one resumed"], 17.0) == ["one", "one resumed"]
    assert leases.take("a", "next", 18.0) == ["one resumed"]
    leases.begin(["one resumed"], 18.0)
    assert leases.loads.take() == {"a": RunnerLoad(2, 2, 2, 4.0)}, "it waited twice, and is one episode"
    leases.end("one resumed")
    assert leases.take("a", "next", 19.0) == ["other"]


def test_environments_for_which_no_runner_asks_are_found():
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    leases.offer(1, "a", 0.0)
    leases.offer(2, "b", 50.0)
    assert leases.unserved(60.0, 60.0) == []
    assert leases.unserved(60.1, 60.0) == ["a"]
    leases.end(1)
    assert leases.unserved(100.0, 60.0) == []


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda leases, now: leases.take("a", "r", now), []),
        (lambda leases, now: leases.heartbeat("a", "r", [1], now), []),
        (lambda leases, now: leases.heartbeat("a", "s", [], now), []),
        (lambda leases, now: leases.take("b", "r", now), ["a"]),
        (lambda leases, now: leases.heartbeat("b", "r", [], now), ["a"]),
    ],
    ids=["asks", "is full", "has none yet", "asks of another", "lives in another"],
)
def test_an_environment_of_which_a_runner_calls_is_served(call, expected):
    """A runner without a free place asks for nothing, whatever waits."""
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    for number in (1, 2, 3):
        leases.offer(number, "a", 0.0)
    assert leases.take("a", "r", 1.0) == [1]
    call(leases, 100.0)
    assert leases.unserved(100.0 + 60.0, 60.0) == expected
    assert leases.unserved(100.1 + 60.0, 60.0) == ["a"], "no runner has called for that long"
    leases.heartbeat("a", "r", [1], 200.0)
    assert leases.unserved(200.0, 60.0) == [], "a runner is there again"


def test_an_attempt_that_no_runner_received_is_the_next_one():
    leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
    for number in (1, 2):
        leases.offer(number, "a", 0.0)
    assert leases.take("a", "leaves", 1.0) == [1]
    assert leases.give_back(1, 2.0)
    assert leases.runner(1) is None
    assert not leases.give_back(1, 3.0), "it waits"
    assert leases.take("a", "r", 4.0) == [1]
    leases.end(1)
    assert not leases.give_back(1, 5.0), "it has ended"
    assert leases.take("a", "r", 5.0) == [2]


class Compared(int):
    """A number that counts how often it is compared."""

    count = 0

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return int(self) == other


def test_the_end_of_a_waiting_attempt_costs_no_search():
    """Thousands may be dropped together, in the event loop of the coordinator."""
    leases: RunnerLeases[Compared] = RunnerLeases(PATIENCE)
    numbers = [Compared(number) for number in range(1_000)]
    for number in numbers:
        leases.offer(number, "a", 0.0)
    Compared.count = 0
    for number in reversed(numbers):
        leases.end(Compared(number))
    assert 0 < Compared.count <= 10 * len(numbers)
    assert leases.take("a", "r", 1.0) == []


class Leases(RuleBasedStateMachine):
    """An attempt is with one runner at most, and is given out once."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: RunnerLeases[int] = RunnerLeases(PATIENCE)
        self.now = 0.0
        self.number = 0
        self.waiting: list[int] = []
        self.held: dict[int, str] = {}

    @rule(seconds=st.floats(0.0, 5.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def offer(self) -> None:
        self.number += 1
        self.waiting.append(self.number)
        self.leases.offer(self.number, "a", self.now)

    @rule(runner=st.sampled_from("xyz"))
    def take(self, runner: str) -> None:
        taken = self.leases.take("a", runner, self.now)
        assert taken == self.waiting[:1]
        del self.waiting[:1]
        self.held |= dict.fromkeys(taken, runner)

    @rule(runner=st.sampled_from("xyz"), data=st.data())
    def heartbeat(self, runner: str, data: st.DataObject) -> None:
        named = data.draw(st.lists(st.integers(1, self.number + 1), unique=True, max_size=4))
        foreign = self.leases.heartbeat("a", runner, named, self.now)
        assert foreign == [one for one in named if self.held.get(one) != runner]

    @precondition(lambda self: self.number)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.number))
        self.leases.end(number)
        self.held.pop(number, None)
        if number in self.waiting:
            self.waiting.remove(number)

    @invariant()
    def every_attempt_has_its_runner(self) -> None:
        for number in range(1, self.number + 1):
            assert self.leases.runner(number) == self.held.get(number)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
