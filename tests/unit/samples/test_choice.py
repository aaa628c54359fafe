"""The kept responses show best, worst, typical and lost ones, whatever the order of the round."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.samples import Candidate, SampleOutcome, choose

TRAINED, FAILED, FILTERED, ABORTED = (
    SampleOutcome.TRAINED,
    SampleOutcome.FAILED,
    SampleOutcome.FILTERED,
    SampleOutcome.ABORTED,
)
USED = (TRAINED, SampleOutcome.EVALUATED)
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        key=st.text("abcdef", min_size=1, max_size=6),
        outcome=st.sampled_from(SampleOutcome),
        reward=st.none() | st.integers(-3, 3).map(float),
    ),
    unique_by=lambda candidate: candidate.key,
    max_size=40,
)


def ranked(count: int, outcome: SampleOutcome = TRAINED) -> list[Candidate]:
    """Rewards 0, 1, 2 …"""
    return [Candidate(f"{outcome}-{place}", outcome, float(place)) for place in range(count)]


@pytest.mark.parametrize(
    ("found", "count", "expected"),
    [
        ([], 8, []),
        (ranked(5), None, [0, 1, 2, 3, 4]),
        (ranked(5), 0, []),
        (ranked(5), 5, [0, 1, 2, 3, 4]),
        (ranked(5), 1, [4]),
        (ranked(5), 2, [0, 4]),
        ([*ranked(5), *ranked(1, FILTERED)], 3, [0, 4, 5]),
        (ranked(3, FAILED), 2, "two lost ones"),
        ([*ranked(9), *ranked(9, ABORTED), *ranked(1, FAILED), *ranked(1, FILTERED)], 8, "each outcome that is rare"),
    ],
)
def test_who_is_kept(found, count, expected):
    chosen = choose(found, count, "seed")
    match expected:
        case "two lost ones":
            assert len(chosen) == 2
        case "each outcome that is rare":
            assert {0, 1, 7, 8, 18, 19} <= set(chosen)
        case places:
            assert list(chosen) == places


@given(CANDIDATES, st.integers(0, 12), st.integers(0, 3))
def test_as_many_as_asked_and_each_once(found, count, seed):
    chosen = choose(found, count, str(seed))
    assert len(chosen) == min(count, len(found))
    assert list(chosen) == sorted(set(chosen))


@given(CANDIDATES, st.integers(0, 12), st.randoms())
def test_the_order_of_the_round_changes_nothing(found, count, rng: random.Random):
    mixed = list(found)
    rng.shuffle(mixed)
    first, second = choose(found, count, "s"), choose(mixed, count, "s")
    assert {found[place].key for place in first} == {mixed[place].key for place in second}


@given(CANDIDATES, st.integers(4, 12))
def test_best_worst_and_lost_are_among_them(found, count):
    chosen = [found[place] for place in choose(found, count, "s")]
    rewards = [candidate.reward or 0.0 for candidate in found if candidate.outcome in USED]
    if rewards:
        kept = [candidate.reward or 0.0 for candidate in chosen if candidate.outcome in USED]
        assert (min(kept), max(kept)) == (min(rewards), max(rewards))
    if any(candidate.outcome not in USED for candidate in found):
        assert any(candidate.outcome not in USED for candidate in chosen)


def test_seeds_choose_others_of_the_middle():
    found = ranked(100)
    middle = Counter(place for seed in range(50) for place in choose(found, 8, str(seed)) if 5 < place < 95)
    assert len(middle) > 30
