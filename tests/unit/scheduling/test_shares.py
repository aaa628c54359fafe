"""Shares: exact after every prompt, from counts alone."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols.trajectory import Cursor
from rljob_runtime.scheduling.shares import ONE_SOURCE, Shares, allot
from tests.support.processor_time import within

WEIGHTS = st.lists(st.integers(1, 60).map(lambda tenths: tenths / 10), min_size=1, max_size=7).map(
    lambda found: {f"s{number}": weight for number, weight in enumerate(found)}
)


@pytest.mark.parametrize(
    ("name", "weights", "counts", "expected"),
    [
        ("equal weights alternate", {"a": 1, "b": 1}, {}, "abab"),
        ("scale does not matter", {"a": 50, "b": 50}, {}, "abab"),
        ("three to one", {"a": 3, "b": 1}, {}, "aaabaaab"),
        ("decimals are read as written", {"a": 0.7, "b": 0.2, "c": 0.1}, {}, "aaabaabaac"),
        ("continues from counts", {"a": 3, "b": 1}, {"a": 2, "b": 1}, "aaaab"),
        ("a single source", {"a": 0.3}, {"a": 9}, "aaa"),
    ],
)
def test_sequence(name: str, weights: dict[str, float], counts: dict[str, int], expected: str) -> None:
    assert "".join(Shares.of(weights).sequence(counts, len(expected))) == expected


@given(WEIGHTS, st.integers(0, 200))
def test_each_source_is_within_one_prompt_of_its_share_after_each_prompt(weights: dict[str, float], n: int) -> None:
    shares = Shares.of(weights)
    counts: Counter[str] = Counter()
    for drawn, source in enumerate(shares.sequence({}, n), 1):
        counts[source] += 1
        for name, weight in shares.weights.items():
            assert abs(counts[name] - drawn * weight / shares.total) < 1


@given(WEIGHTS, st.lists(st.integers(0, 30), min_size=7, max_size=7), st.integers(0, 60))
def test_sequence_is_the_earliest_deadline_first_whatever_the_counts(
    weights: dict[str, float], counts: list[int], number: int
) -> None:
    shares = Shares.of(weights)
    begun = dict(zip(weights, counts, strict=False))
    taken, total = Counter(begun), shares.total
    expected = []
    for now in range(sum(begun.values()) + 1, sum(begun.values()) + number + 1):
        due = [name for name, weight in shares.weights.items() if now * weight > taken[name] * total]
        name = min(due, key=lambda name: -(-(taken[name] + 1) * total // shares.weights[name]))
        taken[name] += 1
        expected.append(name)
    assert list(shares.sequence(begun, number)) == expected


def test_the_largest_round_of_the_most_sources_takes_less_than_a_second() -> None:
    shares = Shares.of({f"s{number}": 1 + number / 7 for number in range(16)})
    with within(1):
        assert len(shares.sequence({}, 65_536)) == 65_536


@pytest.mark.parametrize(
    ("weights", "prompts", "factor", "times"),
    [
        ({"a": 1, "b": 1}, 4, 1.0, 2),
        ({"a": 1, "b": 1}, 4, 8.0, 16),
        ({"a": 3, "b": 1}, 4, 1.0, 1),
        ({"a": 9, "b": 1}, 4, 1.0, 1),
        ({"a": 3, "b": 1}, 10, 1.1, 3),
        ({"a": 0.9, "b": 0.1}, 10, 1.1, 2),
        ({"b": 1}, 4, 2.0, 8),
    ],
)
def test_the_share_limits_replacements_of_consecutive_filtered_groups(
    weights: dict[str, float], prompts: int, factor: float, times: int
) -> None:
    shares = Shares.of(weights)
    replaced = [shares.replaces("b", filtered, prompts, factor) for filtered in range(40)]
    assert replaced == [True] * times + [False] * (40 - times)


@given(WEIGHTS, st.integers(1, 50), st.integers(10, 1000).map(lambda tenths: tenths / 10))
def test_each_source_gets_a_replacement_and_the_factor_limits_their_sum(
    weights: dict[str, float], prompts: int, factor: float
) -> None:
    shares = Shares.of(weights)
    times = {
        name: next(filtered for filtered in range(5001) if not shares.replaces(name, filtered, prompts, factor))
        for name in weights
    }
    assert min(times.values()) >= 1
    assert sum(times.values()) - Fraction(str(factor)) * prompts < len(weights)


@given(WEIGHTS, st.integers(0, 60), st.integers(0, 60))
def test_sequence_does_not_depend_on_where_it_was_interrupted(weights: dict[str, float], first: int, more: int) -> None:
    shares = Shares.of(weights)
    begun, cursor = allot(shares, Cursor(), first)
    rest, after = allot(shares, cursor, more)
    assert (begun + rest, after) == allot(shares, Cursor(), first + more)


@given(WEIGHTS, st.integers(0, 60), st.integers(0, 100))
def test_least_is_a_bound_of_what_comes(weights: dict[str, float], first: int, more: int) -> None:
    shares = Shares.of(weights)
    counts = Counter(shares.sequence({}, first))
    coming = Counter(shares.sequence(counts, more))
    for name, least in shares.least(counts, more).items():
        assert least <= coming[name] <= least + 2


def test_other_weights_begin_again() -> None:
    _, cursor = allot(Shares.of({"a": 1, "b": 9}), Cursor(), 50)
    changed = Shares.of({"a": 5, "b": 5})
    assert changed.counts(cursor) == {"a": 0, "b": 0}
    assert Counter(allot(changed, cursor, 10)[0]) == {"a": 5, "b": 5}


def test_job_without_named_sources_keeps_its_cursor() -> None:
    assert allot(ONE_SOURCE, Cursor(2, 7), 3) == (("", "", ""), Cursor(2, 7))
    assert ONE_SOURCE.weights == {"": Fraction(1)}
