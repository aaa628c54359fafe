"""A tiny fp32 model, its weights in a relay segment, and one engine of each kind for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from rljob_runtime.rollout.engines.base import Engine, EngineSettings
from rljob_runtime.rollout.engines.factory import make_engine
from tests.support.rollout.engines import ENGINES, Publisher, tiny_config, tiny_model


@pytest.fixture(scope="session")
def config() -> LlamaConfig:
    return tiny_config()


@pytest.fixture(scope="session")
def model(config: LlamaConfig) -> LlamaForCausalLM:
    return tiny_model(1, config)


@pytest.fixture(scope="session")
def other_model(config: LlamaConfig) -> LlamaForCausalLM:
    return tiny_model(2, config)


@pytest.fixture(scope="session")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path_factory.mktemp("shm") / "segment")
    yield publisher
    publisher.close()


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory, config: LlamaConfig, publisher: Publisher) -> EngineSettings:
    folder = tmp_path_factory.mktemp("model")
    config.save_pretrained(folder)
    return EngineSettings(
        folder=folder, weights=publisher.folder, dtype="float32", max_model_len=256, kv_cache_bytes=16 << 20
    )


@pytest.fixture(scope="session")
def engines(settings: EngineSettings) -> Iterator[Callable[..., Engine]]:
    """`engines(kind)` is the shared engine of a kind; `engines(kind, kv_blocks=8)` another one with these settings."""
    made: dict[object, Engine] = {}

    def get(kind: str, **changes: object) -> Engine:
        name = (kind, tuple(sorted(changes.items())))
        if name not in made:
            made[name] = make_engine(kind, replace(settings, **changes))  # type: ignore[arg-type]
        return made[name]

    yield get
    for engine in made.values():
        engine.close()


@pytest.fixture(params=[pytest.param(e, marks=pytest.mark.engine if e == "VLLM" else ()) for e in ENGINES])
def kind(request: pytest.FixtureRequest) -> str:
    engine: str = request.param
    return engine


@pytest.fixture
def engine(
    kind: str, engines: Callable[..., Engine], publisher: Publisher, model: LlamaForCausalLM
) -> Iterator[Engine]:
    """The shared engine of this kind with the weights of `model`."""
    engine = engines(kind)
    engine.load(publisher.publish(model))
    yield engine
    assert not engine.busy, "a test left requests behind"
