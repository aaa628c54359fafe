"""The byte budget grants claims in their order, to each owner its share, and never more than the total."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.byte_budget import ByteBudget, Claim, Denial


def asked(budget: ByteBudget[str], owner: str, amount: int) -> Claim[str]:
    claim = budget.ask(owner, amount)
    assert isinstance(claim, Claim)
    return claim


def test_an_owner_waits_for_its_own_share_and_others_pass():
    budget = ByteBudget[str](100, 40, 8)
    first, second, other = (asked(budget, owner, 30) for owner in ("a", "a", "b"))
    assert (first.granted, second.granted, other.granted) == (True, False, True)
    assert budget.release(first) == [second]
    assert budget.held == 60


def test_a_large_claim_that_waits_for_room_is_not_starved_by_small_ones():
    budget = ByteBudget[str](100, 80, 8)
    first, large, small = asked(budget, "a", 50), asked(budget, "b", 80), asked(budget, "c", 10)
    assert (first.granted, large.granted, small.granted) == (True, False, False)
    assert budget.release(first) == [large, small]


@pytest.mark.parametrize(("amount", "before", "why"), [(41, 0, Denial.SHARE), (1, 3, Denial.CLAIMS)])
def test_a_claim_that_cannot_be_granted_is_denied_with_its_reason(amount, before, why):
    budget = ByteBudget[str](100, 40, 3)
    for _ in range(before):
        asked(budget, "a", 1)
    assert budget.ask("a", amount) is why
    asked(budget, "b", 40)


def test_claims_beyond_the_places_wait_and_as_many_more_are_denied():
    budget = ByteBudget[str](100, 100, 8, places=2)
    first, second, third, fourth = (asked(budget, owner, 1) for owner in "abcd")
    assert [one.granted for one in (first, second, third, fourth)] == [True, True, False, False]
    assert budget.ask("e", 1) is Denial.QUEUE
    assert budget.release(first) == [third]
    assert asked(budget, "e", 1).granted is False
    assert budget.release(second) == [fourth]
    assert budget.held == 2


def test_a_full_queue_denies_no_claim_that_need_not_wait():
    budget = ByteBudget[str](100, 50, 8, places=1 + 1)
    first, *own = (asked(budget, "a", 50) for _ in range(3))
    assert [budget.waits_for_own(one) for one in (first, *own)] == [False, True, True]
    assert asked(budget, "b", 1).granted
    assert budget.ask("c", 1) is Denial.QUEUE


def test_a_claim_that_lacks_room_in_the_total_waits_for_others():
    budget = ByteBudget[str](100, 60, 8)
    for owner in "ab":
        asked(budget, owner, 40)
    assert [budget.waits_for_own(asked(budget, owner, 30)) for owner in "ac"] == [True, False]


def test_a_granted_claim_grows_without_a_wait_and_later_claims_wait():
    budget = ByteBudget[str](100, 100, 8)
    first = asked(budget, "a", 90)
    budget.change(first, 120)
    second = asked(budget, "b", 1)
    assert (budget.held, second.granted) == (120, False)
    assert budget.change(first, 20) == [second]


def test_existing_bytes_count_whatever_is_held_and_later_claims_wait():
    budget = ByteBudget[str](100, 100, 1)
    first, second = asked(budget, "a", 90), budget.count("a", 50)
    waiting = asked(budget, "b", 1)
    assert (budget.held, second.granted, waiting.granted) == (140, True, False)
    assert not any(map(budget.has_room, "ac"))
    assert budget.release(second) == [waiting]
    assert all(map(budget.has_room, "ac"))
    budget.release(first)
    assert budget.held == 1


def test_a_claim_that_waits_may_end():
    budget = ByteBudget[str](10, 10, 8)
    first, second, third = (asked(budget, "a", 10) for _ in range(3))
    assert budget.release(second) == []
    assert budget.release(first) == [third]
    budget.release(third)
    assert budget.held == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.booleans()), max_size=60))
def test_claims_stay_within_total_and_share_and_all_are_granted(steps):
    budget = ByteBudget[str](100, 60, 20, places=4)
    open_claims: list[Claim[str]] = []
    for owner, amount, ends in steps:
        if ends and open_claims:
            budget.release(open_claims.pop(amount % len(open_claims)))
        elif isinstance(claim := budget.ask(owner, amount), Claim):
            open_claims.append(claim)
        held = [one for one in open_claims if one.granted]
        assert budget.held == sum(one.amount for one in held) <= 100
        assert len(held) <= 4
        assert len(open_claims) - len(held) <= 4
        assert all(sum(one.amount for one in held if one.owner == owner) <= 60 for owner in "abc")
    while open_claims:
        granted = next(one for one in open_claims if one.granted)
        open_claims.remove(granted)
        budget.release(granted)
    assert budget.held == 0
