"""Episodes of many turns through the loss and gradient code of every response: each sampled token once, in its context.

The reference takes one sampled span a forward pass, with everything before it in its sequence.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_runtime.protocols.trajectory import Span
from rljob_runtime.training.batch.delivery import Progress, outline, plan_accept
from rljob_runtime.training.batch.rows import block_of
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.step.contribution import combine, normalise
from rljob_runtime.training.step.learner import Learner
from tests.support.rows import slow
from tests.support.training.episode_groups import make_episode_groups
from tests.support.training.naive_gradient import (
    CASES,
    TOLERANCE,
    contributions,
    largest_error,
    naive_gradient,
    pieces_of,
)
from tests.support.training.toys import make_learner, watched

pytestmark = pytest.mark.usefixtures("norms_in_full_precision")

QUICK = ("token mean", "GSPO, wide clip", "weighed")
SETTINGS = [
    pytest.param(settings, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, settings in CASES.items()
]


@pytest.mark.parametrize("sub_agents", [False, True])
def test_groups_have_each_sampled_node_once_in_its_context(sub_agents: bool) -> None:
    made = make_episode_groups(seed=4, count=30, sub_agents=sub_agents)
    for group, episodes in made:
        for scored, one in zip(group.responses, episodes, strict=True):
            tree = one.episode.tree
            wanted = [
                (
                    tuple(token for above in tree.path(node.parent) for token in above.token_ids),
                    tuple(node.token_ids),
                    node.logprobs,
                )
                for node in one.episode.sampled
            ]
            left = list(scored.response.logprobs)
            found = []
            for before, tokens in pieces_of(group.prompt_token_ids, scored.response):
                found.append((before, tokens, tuple(left[: len(tokens)])))
                del left[: len(tokens)]
            assert sorted(found) == sorted(wanted)
    spans = [len(scored.response.sequences) for group, _ in made for scored in group.responses]
    assert max(spans) > 2, "episodes that fork are among them"
    assert any(not group.prompt_token_ids for group, _ in made) is sub_agents


@pytest.mark.parametrize("dtype", ["float64", *slow("float32")])
@pytest.mark.parametrize("settings", SETTINGS)
def test_any_split_of_episodes_gives_the_naive_gradient(model_folder, dtype, settings) -> None:
    config = TrainingConfig(dtype=dtype, max_tokens_per_microbatch=40, **settings)
    groups = [group for group, _ in make_episode_groups(seed=1, count=4, sub_agents=True)]
    wanted, loss = naive_gradient(model_folder, groups, config)
    total = combine(contributions(make_learner(model_folder, config), groups, 3))
    assert largest_error(dict(normalise(total, config.aggregation)), wanted) <= TOLERANCE[dtype]
    assert total.sums.loss / total.sums.normaliser(config.aggregation) == pytest.approx(loss, rel=TOLERANCE[dtype] * 10)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_streamed_and_loaned_episodes_give_the_naive_gradient(model_folder, dtype) -> None:
    config = TrainingConfig(dtype=dtype, max_tokens_per_microbatch=60)
    groups = [group for group, _ in make_episode_groups(seed=2, count=4)]
    wanted, _ = naive_gradient(model_folder, groups, config)
    learner, loaned = make_learner(model_folder, config), make_learner(model_folder, config)
    given = watched(learner)
    learner.contribute_early(1, groups[:1])
    delivery, _ = plan_accept(Progress(0, {}, config.row_rules), 1, groups[1:3], 1)
    assert Learner.accept(learner, 1, delivery, loaned.sums_of(1, groups[1:3])) == 3
    report = learner.train(1, groups)
    assert report.early_groups == 3
    assert largest_error(given[0], wanted) <= TOLERANCE[dtype]


def test_a_given_token_in_the_loss_is_seen(model_folder) -> None:
    config = TrainingConfig(dtype="float64")
    (group, _), *_ = make_episode_groups(seed=1, count=1)
    place, scored = next((i, one) for i, one in enumerate(group.responses) if one.response.sequences)
    response = scored.response
    (first, *spans), *others = response.sequences
    longer = replace(
        response,
        token_ids=(*first.given, *response.token_ids),
        logprobs=(*[-1.0] * len(first.given), *response.logprobs),
        sequences=((Span((), len(first.given) + first.sampled), *spans), *others),
    )
    if not first.given:
        second, *rest = spans
        head, tail = response.token_ids[: first.sampled], response.token_ids[first.sampled :]
        longer = replace(
            response,
            token_ids=(*head, *second.given, *tail),
            logprobs=(*response.logprobs[: len(head)], *[-1.0] * len(second.given), *response.logprobs[len(head) :]),
            sequences=((first, Span((), len(second.given) + second.sampled), *rest), *others),
        )
    responses = [*group.responses]
    responses[place] = replace(scored, response=longer)
    wanted, _ = naive_gradient(model_folder, [group], config)
    learner = make_learner(model_folder, config)
    total = learner.sums_of(1, [replace(group, responses=tuple(responses))])
    assert largest_error(dict(normalise(total, config.aggregation)), wanted) > 0.01


def test_equal_tokens_at_other_places_are_other_contents() -> None:
    """Sums that are held for a group count for the same group only."""
    (group, _), *_ = make_episode_groups(seed=1, count=1)
    rules = TrainingConfig().row_rules.advantages
    place, scored = next(
        (i, one)
        for i, one in enumerate(group.responses)
        if len(one.response.sequences) == 1 and len(one.response.sequences[0]) > 1
    )
    ((first, second, *rest),) = scored.response.sequences
    moved = (Span((*first.given, *second.given), first.sampled), Span((), second.sampled), *rest)
    responses = [*group.responses]
    responses[place] = replace(scored, response=replace(scored.response, sequences=(moved,)))
    other = replace(group, responses=tuple(responses))
    assert outline(group.prompt, block_of(group, rules)) != outline(group.prompt, block_of(other, rules))


@pytest.mark.parametrize(
    ("sequences", "prompt", "reason"),
    [
        (((Span((), 2),),), (1,), "has 3 tokens; its spans have 2"),
        (((Span((), 3), Span((4,), 0)),), (1,), "without sampled tokens"),
        (((Span((), 3),), ()), (1,), "without sampled tokens"),
        (((Span((), 3),),), (), "begins with a sampled token"),
        ((), (), "has no tokens"),
    ],
)
def test_spans_that_are_no_places_of_the_tokens_are_refused(sequences, prompt, reason) -> None:
    (group, _), *_ = make_episode_groups(seed=1, count=1)
    first, *others = group.responses
    response = replace(first.response, token_ids=(1, 2, 3), logprobs=(-1.0,) * 3, sequences=sequences)
    bad = replace(group, prompt_token_ids=prompt, responses=(replace(first, response=response), *others))
    with pytest.raises(ValueError, match=reason):
        block_of(bad, TrainingConfig().row_rules.advantages)
