"""What ranks are given of a step's groups: everything once, to one of them, and nothing that they hold."""

from __future__ import annotations

import dataclasses
import pickle
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.training.batch.delivery import (
    EMPTY_DELIVERY,
    Delivery,
    Progress,
    Shares,
    plan_accept,
    plan_contribute,
    plan_train,
)
from rljob_runtime.training.row_rules import RowRules
from tests.support.training.toys import changed, make_groups

RULES = RowRules(budget=40)


def holding(groups: Sequence[Group], rules: RowRules = RULES) -> Progress:
    """After step 4, with the sums of these."""
    told = plan_accept(Progress(4, {}, rules), 5, groups, 1)[0].groups if groups else []
    return Progress(4, {outline.prompt: outline for outline in told}, rules)


def responses_in(shares: Sequence[Shares]) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    """(prompt, tokens, logprobs) of every response in them."""
    found = []
    for share in (share for own in shares for share in own):
        for row in share.rows():
            prompts, tokens = iter(row.prompt_token_ids.tolist()), iter(row.token_ids.tolist())
            logprobs, lengths = iter(row.logprobs.tolist()), iter(row.responses.tolist())
            for prompt_length, samples in zip(row.prompts.tolist(), row.samples.tolist(), strict=True):
                prompt = tuple(next(prompts) for _ in range(prompt_length))
                for length in (next(lengths) for _ in range(samples)):
                    text = tuple(next(tokens) for _ in range(length))
                    found.append((prompt, text, tuple(next(logprobs) for _ in range(length))))
    return sorted(found)


def responses_of(groups: Sequence[Group]) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    return sorted(
        (group.prompt_token_ids, tuple(scored.response.token_ids), tuple(scored.response.logprobs))
        for group in groups
        for scored in group.responses
    )


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4), st.integers(1, 60), st.integers(1, 3), st.data())
def test_every_response_goes_to_one_rank_once_unless_it_is_held(seed, count, ranks, budget, minibatches, data) -> None:
    groups = make_groups(seed, count)
    held = data.draw(st.integers(0, count)) if minibatches == 1 else 0
    progress = holding(groups[:held], RowRules(budget, minibatches))
    delivery, shares = plan_train(progress, 5, groups, ranks)
    assert delivery.keeps
    assert [outline.prompt for outline in delivery.groups] == [group.prompt for group in groups]
    assert responses_in(shares) == responses_of(groups[held:])
    # Ranks meet in collectives: each makes as many passes for an update.
    assert len({tuple(len(share.blocks) for share in own) for own in shares}) == 1
    early, parts = plan_contribute(progress, 5, groups, ranks)
    assert [outline.prompt for outline in early.groups] == [group.prompt for group in groups[held:]]
    assert responses_in(parts) == responses_of(groups[held:])


def test_groups_are_the_same_as_arrays_and_after_a_journey() -> None:
    """The coordinator holds arrays of four bytes a token, and its successor reads them from the store."""

    def as_arrays(group: Group) -> Group:
        scored = [
            dataclasses.replace(
                one,
                response=dataclasses.replace(
                    one.response,
                    token_ids=array("i", one.response.token_ids),
                    logprobs=array("f", one.response.logprobs),
                ),
            )
            for one in group.responses
        ]
        return dataclasses.replace(group, responses=tuple(scored))

    held = [as_arrays(group) for group in make_groups(1, 3)]
    delivery, ((share,),) = plan_contribute(holding(pickle.loads(pickle.dumps(held))), 5, held, 1)
    assert (delivery.keeps, delivery.groups, len(share.blocks)) == (True, [], 0)
    assert responses_in(plan_train(holding(()), 5, held, 2)[1]) == responses_of(held)


def surer(group: Group) -> Group:
    """The same texts with other log-probabilities."""
    scored = [
        dataclasses.replace(
            one, response=dataclasses.replace(one.response, logprobs=tuple(x / 2 for x in one.response.logprobs))
        )
        for one in group.responses
    ]
    return dataclasses.replace(group, responses=tuple(scored))


CASES = {
    "what is held is a part": (lambda g: g[:2], lambda g: g, True, 2),
    "a group is not among them": (lambda g: g, lambda g: g[1:], False, 3),
    "one has other contents": (lambda g: g[:2], lambda g: [changed(g[0]), *g[1:]], False, 4),
    "one has other log-probabilities": (lambda g: g[:2], lambda g: [*g[1:], surer(g[0])], False, 4),
    "nothing is held": (lambda g: [], lambda g: g, True, 4),
}


@pytest.mark.parametrize(("held", "of", "keeps", "sent"), CASES.values(), ids=CASES.keys())
def test_what_is_held_counts_as_a_whole_or_not_at_all(held, of, keeps, sent) -> None:
    groups = make_groups(3, 4)
    wanted = of(groups)
    delivery, (shares,) = plan_train(holding(held(groups)), 5, wanted, 1)
    assert delivery.keeps is keeps
    assert responses_in([shares]) == responses_of(wanted[-sent:])


def test_early_groups_drop_held_sums_only_for_other_contents() -> None:
    groups = make_groups(3, 4)
    assert plan_contribute(holding(groups[:2]), 5, groups[2:], 1)[0].keeps
    again, (shares,) = plan_contribute(holding(groups[:2]), 5, [changed(groups[0]), groups[3]], 1)
    assert not again.keeps
    assert responses_in([shares]) == responses_of([groups[0], groups[3]])


@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_step_whose_turn_it_is_not_brings_nothing(step: int) -> None:
    groups = [*make_groups(1, 1), *make_groups(1, 1)]  # which could not be trained on
    progress = holding(())
    assert plan_train(progress, step, groups, 2) == (EMPTY_DELIVERY, [(), ()])
    assert plan_contribute(progress, step, groups, 2) == (EMPTY_DELIVERY, [(), ()])
    assert plan_accept(progress, step, groups, 2) == (EMPTY_DELIVERY, [])


def test_no_rank_needs_what_another_worker_summed() -> None:
    delivery, shares = plan_accept(holding(()), 5, make_groups(1, 3), 8)
    assert shares == []
    assert isinstance(delivery, Delivery)
    assert len(delivery.groups) == 3
