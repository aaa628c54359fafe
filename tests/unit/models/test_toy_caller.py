"""The toy that calls a calculator in every turn: what may follow a token, and how long its episodes are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_env.foreign_code.functions import called, load_function
from rljob_runtime.gateway.text.turn_text import TurnTokens
from rljob_runtime.models import toy_calculator, toy_caller
from rljob_runtime.models.folder import ModelFolder
from rljob_runtime.models.source import package_config, resolve
from rljob_runtime.models.stop_tokens import eos_token_ids
from rljob_runtime.models.toy import recipe
from rljob_runtime.models.toy_calculator import PHRASING, calculator_tool
from rljob_runtime.models.toy_caller import followers
from tests.support.gateway.site import user
from tests.support.gateway.toy_texts import result_message, text_of
from tests.support.paths import ROOT

TOOLS = (calculator_tool(),)
TURNS = 20
CALCULATE = load_function(ROOT / "examples", "calculator.py:calculate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return resolve("package://rljob/toy-caller", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def model(folder: ModelFolder) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32)


def test_the_toy_caller_says_what_may_follow_a_token_whatever_came_before(folder: ModelFolder, model: Any) -> None:
    ids = folder.tokenizer.get_vocab()
    for token, shares in followers().items():
        before = torch.tensor([[ids["7"], ids["*"], ids[token]], [ids["?"], ids["<user>"], ids[token]]])
        with torch.no_grad():
            found = model(before).logits[:, -1].softmax(-1)
        wanted = torch.zeros_like(found[0])
        for follower, share in shares.items():
            wanted[ids[follower]] = share
        assert sum(shares.values()) == pytest.approx(1.0)
        assert torch.allclose(found, wanted.expand_as(found), atol=1e-3), token


def test_the_toy_caller_calls_the_calculator_in_each_turn(folder: ModelFolder, model: Any) -> None:
    """The calculator understands each call, and all turns fit into the context."""
    text = text_of(folder.tokenizer)
    prompt = text.first([user(PHRASING.format(expression="47 * 68"))], TOOLS)
    asked = set()
    for turn in range(TURNS):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(turn)
            tokens = model.generate(
                torch.tensor([prompt]), do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=64
            )
        sampled = TurnTokens(prompt, tokens[0, len(prompt) :].tolist())
        reply = text.reply(sampled, TOOLS, calls=True)
        (call,) = reply.calls
        expression = json.loads(call.arguments)["expression"]
        asked.add(expression)
        result = called(CALCULATE, expression=expression)
        assert int(result) == eval(expression)
        following = text.following(sampled, [result_message(result)], TOOLS)
        assert following is not None
        prompt = following
    assert len(asked) > TURNS / 2
    assert len(prompt) < 500


def test_the_toy_callers_end_of_a_turn_and_config(folder: ModelFolder) -> None:
    assert eos_token_ids(folder.model_files()) == {folder.tokenizer.eos_token_id}
    planned = package_config("rljob/toy-caller")
    assert all(planned[name] == getattr(folder.config, name) for name in ("hidden_size", "vocab_size", "model_type"))


@pytest.mark.parametrize("edited", [toy_caller, toy_calculator])
def test_another_recipe_makes_another_toy_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: Any) -> None:
    source = tmp_path / "edited.py"
    source.write_bytes(Path(edited.__file__).read_bytes())
    monkeypatch.setattr(toy_caller, "_build", lambda target: None)
    monkeypatch.setattr(edited, "__file__", str(source))
    first = toy_caller.toy_caller(tmp_path / "cache")
    assert recipe(source) in first.name
    source.write_text(source.read_text().replace("SEED = ", "SEED = 1"))
    assert toy_caller.toy_caller(tmp_path / "cache") != first
