"""A rank from start to export: idempotent commands, terms, checkpoints that go on bit for bit, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_runtime.protocols import Chain, Refused, StaleTerm
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.ranks.settings import TrainerSettings
from tests.support.training.toys import FakePublisher, LoneRank, make_groups, save_tiny_model, save_tokenizer

CHAIN = Chain(epoch=1, revision=0, members=())


@pytest.fixture
def settings(model_folder: Path, tmp_path: Path) -> TrainerSettings:
    return TrainerSettings(
        training=TrainingConfig(
            dtype="bfloat16", learning_rate=1e-2, warmup_steps=3, minibatches=2, kl_coefficient=0.01
        ),
        model_source=str(model_folder),
        cache_folder=tmp_path / "cache",
        checkpoint_folder=tmp_path / "checkpoints",
        export_folder=tmp_path / "model",
    )


def started(settings: TrainerSettings) -> LoneRank:
    rank = LoneRank(settings, FakePublisher)
    rank.start(1)
    return rank


def weights(rank: LoneRank) -> dict[str, torch.Tensor]:
    publisher = FakePublisher()
    rank._started.publisher = publisher
    rank._started.published = None
    rank.publish(rank._fence.term, 10_000, rank._started.position.step, CHAIN)
    return publisher.weights


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_resumed_trainer_continues_bit_for_bit(settings) -> None:
    unbroken = started(settings)
    for step in (1, 2):
        unbroken.train(1, step, make_groups(step, 4))
    unbroken.checkpoint(1, 2, "{}")
    wanted = [unbroken.train(1, step, make_groups(step, 4)) for step in (3, 4)]

    resumed = LoneRank(settings, FakePublisher)
    state = resumed.start(1)
    assert (state.step, state.restored_from) == (2, "step-00000002")
    found = [resumed.train(1, step, make_groups(step, 4)) for step in (3, 4)]
    drop = {"seconds": 0.0}
    assert [dataclasses.replace(r, **drop) for r in found] == [dataclasses.replace(r, **drop) for r in wanted]
    assert_same(resumed._started.optimizer.master, unbroken._started.optimizer.master)
    assert_same(weights(resumed), weights(unbroken))


def test_a_step_that_is_done_answers_its_report_again(settings) -> None:
    rank = started(settings)
    report = rank.train(1, 1, make_groups(1, 4))
    before = weights(rank)
    assert rank.train(1, 1, make_groups(1, 4)) == report
    assert_same(weights(rank), before)
    rank.checkpoint(1, 1, "{}")
    again = LoneRank(settings, FakePublisher)
    again.start(1)
    assert again.train(1, 1, make_groups(1, 4)) == report


def test_what_the_coordinator_gave_comes_back_with_its_step(settings) -> None:
    rank = LoneRank(settings, FakePublisher)
    fresh = rank.start(1)
    assert (fresh.step, fresh.kept, fresh.coordinator_snapshot) == (0, 0, None)
    rank.train(1, 1, make_groups(1, 2))
    rank.checkpoint(1, 1, '{"step": 1}')
    rank.train(1, 2, make_groups(2, 2))
    state = rank.start(1)
    assert (state.step, state.kept, state.coordinator_snapshot) == (2, 1, '{"step": 1}')
    restarted = LoneRank(settings, FakePublisher).start(1)
    assert (restarted.step, restarted.kept, restarted.coordinator_snapshot) == (1, 1, '{"step": 1}')


@pytest.mark.parametrize("step", [0, 3, 7])
def test_a_step_that_is_not_next_is_refused(settings, step) -> None:
    rank = started(settings)
    rank.train(1, 1, make_groups(1, 2))
    with pytest.raises(Refused, match=f"step {step} cannot be trained: step 1 is done, so 2 is next"):
        rank.train(1, step, make_groups(1, 2))


def test_an_older_term_is_refused(settings) -> None:
    rank = LoneRank(settings, FakePublisher)
    rank.start(4)
    for call in (
        lambda: rank.start(3),
        lambda: rank.train(3, 1, make_groups(1, 2)),
        lambda: rank.publish(3, 1, 0, CHAIN),
        lambda: rank.checkpoint(3, 0, "{}"),
        lambda: rank.export(3),
    ):
        with pytest.raises(StaleTerm, match="term 3 is over"):
            call()
    rank.train(5, 1, make_groups(1, 2))
    with pytest.raises(StaleTerm):
        rank.train(4, 2, make_groups(1, 2))


def test_published_weights_are_those_computed_with(settings) -> None:
    rank = started(settings)
    rank.train(1, 1, make_groups(1, 4))
    for name, tensor in weights(rank).items():
        assert torch.equal(tensor, tensor.to(torch.bfloat16).float()), name
        assert torch.equal(tensor, rank._started.optimizer.compute[name])
    moved = rank._started.optimizer.master["model.norm.weight"]
    assert not torch.equal(moved, moved.to(torch.bfloat16).float()), "the master keeps what rounding drops"


def test_a_version_is_never_given_to_other_weights(settings) -> None:
    rank = started(settings)
    rank.publish(1, 1, 0, CHAIN)
    rank.publish(1, 1, 0, CHAIN)
    publisher = rank._started.publisher
    assert (publisher.published, publisher.shipped) == ([1], [CHAIN, CHAIN])
    rank.train(1, 1, make_groups(1, 2))
    with pytest.raises(Refused, match="version 1 at step 1: version 1 was published at step 0; use a higher one"):
        rank.publish(1, 1, 1, CHAIN)
    rank.publish(1, 2, 1, CHAIN)
    assert publisher.published == [1, 2]


def test_weights_are_published_for_the_step_that_they_are_of(settings) -> None:
    """A trainer that was restored knows nothing of former numbers: a call that waited for an update is refused by its
    step."""
    rank = started(settings)
    rank.train(1, 1, make_groups(1, 2))
    with pytest.raises(Refused, match="version 4 of step 0: the trainer holds step 1, and can publish only that"):
        rank.publish(1, 4, 0, CHAIN)
    assert rank._started.publisher.published == []


def test_the_export_is_a_model_folder_with_the_published_weights(settings) -> None:
    rank = started(settings)
    rank.train(1, 1, make_groups(1, 4))
    for _ in range(2):  # a second export replaces the first
        folder = rank.export(1)
    exported, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values())
    assert_same(dict(exported.named_parameters()), weights(rank))
    assert sorted(path.name for path in settings.export_folder.parent.iterdir()) == ["model"]


def test_another_checkpoint_step_is_refused(settings) -> None:
    rank = started(settings)
    with pytest.raises(Refused, match="checkpoint of step 3: the trainer holds step 0"):
        rank.checkpoint(1, 3, "{}")


def test_commands_before_start_are_refused(settings) -> None:
    with pytest.raises(Refused, match="not started"):
        LoneRank(settings, FakePublisher).train(1, 1, [])


def test_groups_that_cannot_be_trained_on_change_nothing(settings) -> None:
    rank = started(settings)
    before = weights(rank)
    group = make_groups(1, 1)[0]
    scored = group.responses[0]
    short = dataclasses.replace(scored.response, logprobs=scored.response.logprobs[:-1])
    alien = dataclasses.replace(scored.response, token_ids=(99,), logprobs=(-1.0,))
    lost = dataclasses.replace(scored.response, logprobs=(float("nan"),) * len(scored.response.token_ids))

    def with_response(response: object) -> object:
        return dataclasses.replace(
            group, responses=(dataclasses.replace(scored, response=response), *group.responses[1:])
        )

    cases = {
        "no groups to train on": [],
        "group 0.0 occurs twice": [group, group],
        "one logprob a token": [with_response(short)],
        "token 99 is outside the model's vocabulary of 37": [with_response(alien)],
        "logprobs that are not finite": [with_response(lost)],
        "has no tokens": [dataclasses.replace(group, prompt_token_ids=())],
        "a reward is a finite number": [
            dataclasses.replace(group, responses=(dataclasses.replace(scored, reward=float("nan")),))
        ],
        "at least one reward": [dataclasses.replace(group, responses=())],
    }
    for message, groups in cases.items():
        with pytest.raises(Refused, match=message):
            rank.train(1, 1, groups)
    assert_same(weights(rank), before)
    assert rank.train(1, 1, [group]).step == 1


def test_a_model_that_cannot_be_trained_is_refused(settings, tmp_path) -> None:
    nowhere = dataclasses.replace(settings, model_source=str(tmp_path / "nowhere"))
    with pytest.raises(Refused, match="nowhere"):
        LoneRank(nowhere, FakePublisher).start(1)
    save_tiny_model(tmp_path / "untrained")
    save_tokenizer(tmp_path / "untrained")
    (tmp_path / "untrained" / "model.safetensors").unlink()
    with pytest.raises(Refused, match="weights"):
        LoneRank(dataclasses.replace(settings, model_source=str(tmp_path / "untrained")), FakePublisher).start(1)
