"""One contract, two engines: what every engine does for the replica, checked against transformers and the trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM

from rljob_runtime.rollout.engines.base import Engine, EngineRequest, RequestRejected
from rljob_runtime.rollout.engines.reference.engine import ReferenceEngine
from rljob_runtime.rollout.engines.reference.sampling import kept_tokens
from rljob_runtime.rollout.engines.weights import VersionUnavailable
from tests.support.rollout.engines import EOS, Generated, Publisher, assert_trainer_logprobs, collect, prompts, run

# The rows of vLLM have pytest.mark.engine, from the fixture `engine`.
Engines = Callable[..., Engine]


def request(id: str, tokens: tuple[int, ...], new: int, **changes: object) -> EngineRequest:
    return EngineRequest(id, tokens, new, **({"temperature": 0.0} | changes))  # type: ignore[arg-type]


def test_greedy_tokens_are_those_of_transformers(engine: Engine, model: LlamaForCausalLM) -> None:
    asked = prompts(8)
    got = run(engine, [request(f"greedy{i}", p, 24) for i, p in enumerate(asked)])
    for i, prompt in enumerate(asked):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert got[f"greedy{i}"].tokens == expected[0, len(prompt) :].tolist()
        assert got[f"greedy{i}"].finish == "length"


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.3])
def test_logprobs_are_the_trainers_at_the_same_temperature(
    engine: Engine, model: LlamaForCausalLM, temperature: float
) -> None:
    asked = prompts(4)
    got = run(engine, [request(f"lp{i}", p, 24, temperature=temperature, seed=i) for i, p in enumerate(asked)])
    for i, prompt in enumerate(asked):
        assert len(got[f"lp{i}"].tokens) == 24
        assert_trainer_logprobs(model, prompt, got[f"lp{i}"], temperature)


def test_samples_follow_the_distribution(engine: Engine, model: LlamaForCausalLM) -> None:
    prompt, draws = prompts(1)[0], 3000
    got = run(engine, [request(f"draw{i}", prompt, 1, temperature=1.0, seed=i) for i in range(draws)])
    counts = torch.bincount(torch.tensor([g.tokens[0] for g in got.values()]), minlength=128) / draws
    expected = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    # The expected total variation of 3,000 draws over 128 values is below 0.09; a wrong temperature gives 0.2 and more.
    assert (counts - expected).abs().sum() / 2 < 0.12


@pytest.mark.parametrize(
    ("choice", "left"), [({"top_k": 3}, 3), ({"top_p": 0.4}, None), ({"min_p": 0.5}, None), ({"top_k": 1}, 1)], ids=str
)
def test_tokens_are_drawn_from_what_is_left_and_the_logprobs_know_all(
    engine: Engine, model: LlamaForCausalLM, choice: dict[str, float], left: int | None
) -> None:
    """Seeded, unseeded, greedy and untruncated requests share a batch."""
    prompt, draws, temperature = prompts(1)[0], 1000, 0.8
    asked = [request(f"t{i}", prompt, 1, temperature=temperature, seed=i, **choice) for i in range(draws)]
    others = [request("free", prompt, 8, temperature=temperature, seed=3), request("greedy", prompt, 8, **choice)]
    got = run(engine, [*asked, *others, request("long", prompt, 8, temperature=temperature, **choice)])
    for name in ("t0", "t1", "free", "greedy", "long"):
        assert_trainer_logprobs(model, prompt, got[name], 0.0 if name == "greedy" else temperature)
    probabilities = (model(torch.tensor([prompt])).logits[0, -1] / temperature).softmax(-1).double()
    settings = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | choice
    kept = kept_tokens(probabilities, **settings)  # type: ignore[arg-type]
    counts = torch.bincount(torch.tensor([got[f"t{i}"].tokens[0] for i in range(draws)]), minlength=128) / draws
    assert 0 < int(kept.sum()) < 60
    assert left is None or int(kept.sum()) == left
    assert float(counts[~kept].sum()) == 0
    expected = torch.where(kept, probabilities, 0.0)
    assert (counts - expected / expected.sum()).abs().sum() / 2 < 0.12


def test_seeds_reproduce_and_differ(engine: Engine) -> None:
    prompt = prompts(1)[0]
    first, again = (
        run(engine, [request(f"{name}{i}", prompt, 24, temperature=1.0, seed=i) for i in range(4)]) for name in "ab"
    )
    assert [g.tokens for g in first.values()] == [again[f"b{i}"].tokens for i in range(4)]
    assert len({tuple(g.tokens) for g in first.values()}) == 4


def test_a_seed_does_not_depend_on_the_batch(engine: Engine) -> None:
    asked = prompts(8)
    alone = run(engine, [request("alone", asked[3], 24, temperature=1.0, seed=11)])["alone"]
    batch = run(engine, [request(f"b{i}", p, 24, temperature=1.0, seed=8 + i) for i, p in enumerate(asked)])
    assert batch["b3"].tokens == alone.tokens


def test_more_prompt_tokens_than_one_step_takes(engine: Engine) -> None:
    """Seeded requests whose prompts exceed a step's budget: no prompt may be cut where the engine cannot resume it."""
    asked = prompts(40, length=150)
    got = run(engine, [request(f"long{i}", p, 2, temperature=1.0, seed=i) for i, p in enumerate(asked)])
    assert [len(g.tokens) for g in got.values()] == [2] * 40


def test_unseeded_requests_differ(engine: Engine) -> None:
    got = run(engine, [request(f"u{i}", prompts(1)[0], 24, temperature=1.0) for i in range(4)])
    assert len({tuple(g.tokens) for g in got.values()}) == 4


def test_a_stop_token_ends_the_response_and_is_kept(engine: Engine) -> None:
    prompt = prompts(1)[0]
    free = run(engine, [request("free", prompt, 24)])["free"]
    stop = free.tokens[7]
    cut = free.tokens[: free.tokens.index(stop) + 1]
    got = run(engine, [request("stopped", prompt, 24, stop_token_ids=frozenset({stop}))])["stopped"]
    assert got.tokens == cut
    assert len(got.logprobs) == len(cut)
    assert got.finish == "stop"


def test_the_end_of_sequence_counts_only_when_it_is_a_stop_token(engine: Engine) -> None:
    asked = [request(f"e{i}", p, 100, temperature=1.5, seed=i) for i, p in enumerate(prompts(16))]
    got = run(engine, asked)
    assert any(EOS in g.tokens for g in got.values()), "the model never draws its end of sequence: a test without force"
    assert {g.finish for g in got.values()} == {"length"}


def test_max_tokens_is_exact(engine: Engine) -> None:
    got = run(engine, [request(f"n{n}", prompts(1)[0], n) for n in (1, 2, 31, 33)])
    assert {id: len(g.tokens) for id, g in got.items()} == {"n1": 1, "n2": 2, "n31": 31, "n33": 33}


def test_abort_ends_output_and_frees_the_cache(engine: Engine) -> None:
    for i, prompt in enumerate(prompts(4)):
        engine.add(request(f"x{i}", prompt, 100))
    seen: dict[str, Generated] = {}
    for _ in range(5):
        collect(engine.step(), seen)
    before = engine.stats().aborted_total
    engine.abort(["x0", "x1", "x2", "x3", "never-seen"])
    engine.abort(["x0"])
    assert engine.stats().aborted_total - before == 4
    assert not engine.busy
    assert engine.step() == []
    assert engine.stats().running == engine.stats().waiting == 0
    assert engine.stats().square_tokens > 0, "the shape of the model is known"
    assert engine.stats().kv_use == 0.0


@pytest.mark.engine  # in both rows one of the two is vLLM's
def test_another_engine_goes_on_with_the_same_tokens(
    engine: Engine, kind: str, engines: Engines, publisher: Publisher, model: LlamaForCausalLM
) -> None:
    """A move: aborted here, continued there from the tokens alone; greedy tokens and logprobs are those of one run."""
    asked = prompts(8)
    whole = run(engine, [request(f"w{i}", p, 60) for i, p in enumerate(asked)])
    for i, prompt in enumerate(asked):
        engine.add(request(f"p{i}", prompt, 60))
    partial: dict[str, Generated] = {}
    while len(partial) < 8 or min(len(g.tokens) for g in partial.values()) < 25:
        collect(engine.step(), partial)
    engine.abort(list(partial))

    other = engines("Reference" if kind == "VLLM" else "VLLM")
    other.load(publisher.version)
    rest = run(
        other,
        [
            request(f"r{i}", asked[i] + tuple(g.tokens), 60 - len(g.tokens), generated=len(g.tokens))
            for i, g in ((int(id[1:]), g) for id, g in partial.items())
        ],
    )
    for i, prompt in enumerate(asked):
        tokens = partial[f"p{i}"].tokens + rest[f"r{i}"].tokens
        assert tokens == whole[f"w{i}"].tokens
        assert_trainer_logprobs(
            model, prompt, Generated(tokens, partial[f"p{i}"].logprobs + rest[f"r{i}"].logprobs), 0.0
        )


def test_a_continuation_does_not_repeat_the_draws_of_the_start(engine: Engine) -> None:
    """With the same seed and the same context, position 0 and position 40 draw independent numbers."""
    prompt = prompts(1)[0]
    starts = run(engine, [request(f"s{i}", prompt, 1, temperature=1.0, seed=i) for i in range(40)])
    continued = run(engine, [request(f"c{i}", prompt, 1, temperature=1.0, seed=i, generated=5) for i in range(40)])
    same = sum(starts[f"s{i}"].tokens == continued[f"c{i}"].tokens for i in range(40))
    assert same < 20


def test_kv_pressure_preempts_and_changes_no_token(
    engine: Engine, kind: str, engines: Engines, publisher: Publisher
) -> None:
    asked = [request(f"k{i}", p, 90, temperature=1.0, seed=i) for i, p in enumerate(prompts(12))]
    free = run(engine, asked)
    assert engine.stats().preemptions_total == 0

    tight = engines(kind, kv_blocks=13)
    tight.load(publisher.version)
    before = tight.stats().preemptions_total
    for r in asked:
        tight.add(r)
    got: dict[str, Generated] = {}
    peak = 0.0
    while tight.busy:
        collect(tight.step(), got)
        peak = max(peak, tight.stats().kv_use)
    assert tight.stats().preemptions_total > before
    assert peak > 0.8
    assert 0 < tight.stats().kv_tokens < sum(len(r.token_ids) + r.max_new_tokens for r in asked)
    assert tight.stats().max_running >= len(asked)
    assert {id: g.tokens for id, g in got.items()} == {id: g.tokens for id, g in free.items()}


def starts(engine: Engine, waiting: list[EngineRequest], late: list[EngineRequest]) -> list[str]:
    """Return the order in which requests make their first token, while one runs at a time."""
    for one in waiting:
        engine.add(one)
    seen: dict[str, Generated] = {}
    collect(engine.step(), seen)
    for one in late:
        engine.add(one)
    while engine.busy:
        collect(engine.step(), seen)
    return list(seen)


def test_lower_priority_values_start_first_equal_ones_in_arrival_order(
    kind: str, engines: Engines, publisher: Publisher, model: LlamaForCausalLM
) -> None:
    engine = engines(kind, max_running=1, has_priorities=True)
    engine.load(publisher.publish(model))
    prompt, before = prompts(1)[0], engine.stats().passed_total
    waiting = [request(name, prompt, 3) for name in ("runs", "b-first", "a-second")]
    late = [request(name, prompt, 3, priority=value) for name, value in (("young", -1), ("old", -7), ("older", -7))]
    assert starts(engine, waiting, late) == ["runs", "old", "older", "young", "b-first", "a-second"]
    # `older` passed the three of higher values, not `old`: each counts once.
    assert engine.stats().passed_total - before == 3


def test_without_priorities_requests_start_as_they_arrive(
    kind: str, engines: Engines, publisher: Publisher, model: LlamaForCausalLM
) -> None:
    engine = engines(kind, max_running=1)
    engine.load(publisher.publish(model))
    waiting = [request(name, prompts(1)[0], 3) for name in ("runs", "b", "c")]
    assert starts(engine, waiting, [request("a", prompts(1)[0], 3)]) == ["runs", "b", "c", "a"]
    assert engine.stats().passed_total == 0


def test_of_two_requests_that_do_not_fit_the_one_of_the_lower_value_stays(
    kind: str, engines: Engines, publisher: Publisher, model: LlamaForCausalLM
) -> None:
    """It came last, and would be preempted where only arrival counts."""
    asked = [request("new", prompts(1)[0], 200), request("started", prompts(2)[1], 200, priority=-1)]
    got, ends = {}, {}
    for has_priorities in (False, True):
        engine = engines(kind, kv_blocks=10, has_priorities=has_priorities)
        engine.load(publisher.publish(model))
        for one in asked if has_priorities else (replace(each, priority=0) for each in asked):
            engine.add(one)
        seen: dict[str, Generated] = {}
        while engine.busy:
            outputs = engine.step()
            collect(outputs, seen)
            ends.setdefault(has_priorities, []).extend(one.id for one in outputs if one.finish_reason)
        assert engine.stats().preemptions_total > 0
        got[has_priorities] = {id: one.tokens for id, one in seen.items()}
    assert ends == {False: ["new", "started"], True: ["started", "new"]}
    assert got[False] == got[True]


def test_stats_count_what_happened(engine: Engine) -> None:
    before = engine.stats()
    asked = [request(f"t{i}", p, 10) for i, p in enumerate(prompts(6))]
    for r in asked:
        engine.add(r)
    assert engine.stats().waiting == 6
    engine.step()
    assert engine.stats().running == 6
    assert 0 < engine.stats().kv_use < 1
    assert engine.stats().kv_use * engine.stats().kv_tokens >= sum(len(r.token_ids) for r in asked) * 0.9
    while engine.busy:
        engine.step()
    after = engine.stats()
    assert after.generated_tokens_total - before.generated_tokens_total == 60
    assert after.prompt_tokens_total - before.prompt_tokens_total == sum(len(r.token_ids) for r in asked)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("bad", (), 5), "no tokens"),
        (request("bad", (3, 4), 0), "at least 1"),
        (request("bad", tuple([3] * 200), 100), "exceed the engine's context of 256"),
        (request("bad", (3, 128), 5), "token id 128 is outside the model's vocabulary of 128"),
    ],
)
def test_impossible_requests_are_rejected_with_the_limit(engine: Engine, bad: EngineRequest, message: str) -> None:
    with pytest.raises(RequestRejected, match=message):
        engine.check(bad)
    assert not engine.busy


def test_an_engine_that_slept_wakes_for_new_weights(
    engine: Engine, publisher: Publisher, other_model: LlamaForCausalLM
) -> None:
    """With nothing of what it held before; kept engines only sleep while they are not busy."""
    prompt = prompts(1, length=60)[0]
    run(engine, [request("before", prompt, 24)])
    engine.sleep()
    assert engine.weight_version is None
    assert engine.stats().running == 0
    engine.wake()
    engine.load(publisher.publish(other_model))
    # Several at a time, of different lengths: what lies behind the end of the shorter ones must be finite.
    asked = [prompt, *prompts(3)]
    got = run(engine, [request(f"after{i}", p, 24) for i, p in enumerate(asked)])
    for i, each in enumerate(asked):
        assert_trainer_logprobs(other_model, each, got[f"after{i}"], 0.0)


def test_the_reference_engine_gives_its_memory_back_while_it_sleeps(engines: Engines, publisher: Publisher) -> None:
    engine = engines("Reference", kv_blocks=9)
    assert isinstance(engine, ReferenceEngine)
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
        for tensor in (*engine._model._named.values(), engine._cache._store)
    }.values()
    taken = [storage.nbytes() for storage in storages]
    assert sum(taken) > 2 * 9 * 32 * 2 * 32 * 4  # weights and a cache of 9 blocks
    engine.sleep()
    assert sum(storage.nbytes() for storage in storages) == 0
    engine.wake()
    assert [storage.nbytes() for storage in storages] == taken
    assert not engine._cache._store.any()


def test_loaded_weights_are_the_trainers(
    engine: Engine, publisher: Publisher, model: LlamaForCausalLM, other_model: LlamaForCausalLM
) -> None:
    """The prompt is generated from under the old weights first: neither a stale prefix cache nor a tied head that kept
    its old weight may show in the logprobs under the new ones."""
    prompt = prompts(1, length=100)[0]
    old = run(engine, [request("old", prompt, 24)])["old"]
    assert_trainer_logprobs(model, prompt, old, 0.0)

    before = engine.stats()
    engine.load(publisher.publish(other_model))
    assert engine.weight_version == publisher.version
    assert engine.stats().prefix_resets_total == before.prefix_resets_total + 1
    assert engine.stats().weight_loads_total == before.weight_loads_total + 1
    new = run(engine, [request("new", prompt, 24)])["new"]
    assert new.tokens != old.tokens
    assert_trainer_logprobs(other_model, prompt, new, 0.0)


def test_a_version_that_the_relay_lacks_changes_nothing(
    engine: Engine, publisher: Publisher, model: LlamaForCausalLM
) -> None:
    held = publisher.version
    with pytest.raises(VersionUnavailable, match=f"version {held + 1} is requested, the relay holds {held}"):
        engine.load(held + 1)
    assert engine.weight_version == held
    prompt = prompts(1)[0]
    assert_trainer_logprobs(model, prompt, run(engine, [request("kept", prompt, 8)])["kept"], 0.0)


def test_outputs_say_what_the_engine_held_of_a_prompt(engine: Engine) -> None:
    """A turn goes on from the tokens of the one before: vLLM holds its full blocks, the reference engine nothing."""
    first = (*prompts(1, length=90)[0], 77, 78)
    answer = run(engine, [request("first", first, 8)])["first"].tokens
    later = (*first, *answer, 5, 6)
    held: set[int | None] = set()
    engine.add(request("later", later, 4))
    while engine.busy:
        held |= {output.cached_tokens for output in engine.step()}
    if isinstance(engine, ReferenceEngine):
        assert held == {0}
        return
    (found,) = held
    assert found is not None
    assert 64 <= found < len(later)
