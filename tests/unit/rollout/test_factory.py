"""What a spec makes of a replica's engine."""

from dataclasses import replace

import pytest
import torch

from rljob_api import load
from rljob_runtime.models import product_dtype
from rljob_runtime.rollout import factory
from rljob_runtime.rollout.engines.vllm import engine_args
from tests.support.api.jobs import job

ENVIRONMENT = {"name": "calc", "kind": "Agent", "command": ["agent"]}


@pytest.mark.parametrize(("environments", "has_priorities"), [([], False), ([ENVIRONMENT], True)])
def test_only_requests_of_episodes_have_priorities(monkeypatch, tmp_path, environments, has_priorities):
    made = []
    monkeypatch.setattr(factory, "engine_maker", lambda kind, settings, sizes: (made.append(settings), lambda: None))
    spec = load(job({"spec.environments": environments})).spec
    config = b'{"eos_token_id": 2}'
    factory.make_replica("replica-0", spec, {"config.json": config}, tmp_path, tmp_path)
    assert [one.has_priorities for one in made] == [has_priorities]


@pytest.mark.engine
@pytest.mark.parametrize(("changes", "policy"), [({}, "fcfs"), ({"has_priorities": True}, "priority")])
def test_vllm_serves_requests_as_they_arrive_unless_they_have_priorities(settings, changes, policy):
    assert engine_args(replace(settings, **changes)).scheduling_policy == policy


@pytest.mark.engine
@pytest.mark.parametrize(("has_bfloat16", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_vllm_computes_in_a_format_that_the_processor_has(monkeypatch, settings, has_bfloat16, dtype):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(product_dtype, "multiplies_bfloat16", lambda: has_bfloat16)
    assert engine_args(replace(settings, dtype="bfloat16")).dtype == dtype
