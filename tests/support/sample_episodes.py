"""Episodes of samples for tests: a calculator's two turns, and a branch that the client opened."""

from __future__ import annotations

from rljob_runtime.samples import Sample, SampleOutcome
from rljob_runtime.samples.episode import SampleCall, SampleEpisode, SampleMessage, SampleTurn

CALL = SampleCall("calculate", '{"expression": "47 * 68"}', "call_2_0")
ASKED = SampleTurn(
    node=2,
    messages=(SampleMessage("system", "Use the tool."), SampleMessage("user", "47 * 68?")),
    sampled='<tool_call>{"name": "calculate"}</tool_call>',
    calls=(CALL,),
    given_tokens=24,
    sampled_tokens=11,
    weight_version=3,
    finish="stop",
    model_seconds=0.25,
    outside_seconds=0.0,
)
ANSWERED = SampleTurn(
    node=4,
    after=2,
    messages=(SampleMessage("tool", "3196", call_id="call_2_0"),),
    sampled="It is 3196.",
    given_tokens=7,
    sampled_tokens=5,
    weight_version=3,
    finish="stop",
    model_seconds=0.125,
    outside_seconds=1.5,
)
BRANCHED = SampleTurn(
    node=6, given="raw words", sampled="cut", given_tokens=9, sampled_tokens=2, weight_version=4, finish="length"
)
EPISODE = SampleEpisode(
    environment="calc",
    attempt=7,
    state="truncated",
    end="the limit of turns was reached",
    forks=1,
    tools=("calculate",),
    metrics={"calls": 1.0},
    turns=(ASKED, ANSWERED, BRANCHED),
)


def episode_sample(episode: SampleEpisode = EPISODE) -> Sample:
    """Return a sample whose response is an episode."""
    return Sample(
        round=3,
        prompt_id="0.1",
        sample=0,
        attempt=1,
        outcome=SampleOutcome.TRAINED,
        prompt=({"role": "user", "content": "47 * 68?"},),
        response="".join(turn.sampled for turn in episode.turns),
        tokens=sum(turn.sampled_tokens for turn in episode.turns),
        reward=1.0,
        episode=episode,
    )
