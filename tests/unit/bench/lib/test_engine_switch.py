"""The switches that `rljob bench gpu` measures, on the CPU: what they move, and that they change no token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rljob_bench.lib import engine_switch
from rljob_runtime.rollout.engines.base import EngineRequest, EngineSettings
from rljob_runtime.rollout.engines.multi_process import MultiProcessEngine
from rljob_runtime.rollout.engines.reference.engine import ReferenceEngine
from tests.support.rollout.engines import Publisher, prompts, run, tiny_config, tiny_model

pytestmark = pytest.mark.engine
TIMES = 3


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSettings]:
    folder, config = tmp_path_factory.mktemp("switch"), tiny_config()
    config.save_pretrained(folder / "model")
    publisher = Publisher(folder / "segment")
    publisher.publish(tiny_model(1, config))
    yield EngineSettings(
        folder / "model", publisher.folder, dtype="float32", max_model_len=96, kv_blocks=32, block_size=8
    )
    publisher.close()


@pytest.fixture(scope="module")
def requests() -> list[EngineRequest]:
    return [EngineRequest(f"r{i}", prompt, 20, temperature=0.0) for i, prompt in enumerate(prompts(4, length=30))]


@pytest.fixture(scope="module")
def found(settings: EngineSettings, requests: list[EngineRequest]) -> engine_switch.Switches:
    return engine_switch.measure(settings, 1, requests, times=TIMES)


def test_switched_responses_have_the_tokens_of_one_run(found, settings, requests) -> None:
    alone = ReferenceEngine(settings)
    alone.load(1)
    whole = run(alone, requests)
    for id, tokens in found.tokens.items():
        assert len(tokens) > TIMES
        assert tokens == whole[id].tokens[: len(tokens)]


def test_a_switch_moves_all_full_blocks(found, settings, requests) -> None:
    assert len(found.each) == TIMES
    first = found.each[0]
    assert first.kv_tokens == sum(len(request.token_ids) // 8 * 8 for request in requests)
    # Keys and values of two layers, one head of 32 numbers, four bytes each.
    assert first.kv_bytes == first.kv_tokens * 2 * 2 * 32 * 4
    assert all(min(one.export, one.sleep, one.wake, one.load, one.take) > 0 for one in found.each)
    assert min(found.build, found.prefill) > 0
    assert not list((settings.weights.parent / "kv").glob("*.kv"))


def test_kv_that_cannot_be_used_is_no_figure(settings, requests, monkeypatch) -> None:
    monkeypatch.setattr(MultiProcessEngine, "kv_open", lambda self, tickets: [False] * len(tickets))
    with pytest.raises(RuntimeError, match="of 0 of 4 responses can be used"):
        engine_switch.measure(settings, 1, requests, times=1)
