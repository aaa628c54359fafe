"""An episode of a sample is read back from its line as it was, and its absence changes no line."""

import json

import pytest

from rljob_runtime.samples import Sample, SampleOutcome
from tests.support.sample_episodes import EPISODE, episode_sample


def test_an_episode_is_read_back_as_it_was():
    sample = episode_sample()
    line = sample.to_json()
    assert Sample.from_json(line) == sample
    turn = json.loads(line)["episode"]["turns"][1]
    assert turn == {
        "node": 4, "after": 2, "messages": [{"role": "tool", "content": "3196", "callId": "call_2_0"}],
        "sampled": "It is 3196.", "givenTokens": 7, "sampledTokens": 5, "weightVersion": 3, "finish": "stop",
        "modelSeconds": 0.125, "outsideSeconds": 1.5,
    }  # fmt: skip


def test_fields_of_later_versions_are_ignored():
    values = episode_sample().to_dict()
    values["episode"] |= {"later": 1}
    values["episode"]["turns"][0] |= {"later": [1]}
    values["episode"]["turns"][0]["messages"][0] |= {"later": {}}
    assert Sample.from_dict(values).episode == EPISODE


def test_a_sample_of_one_turn_has_no_episode():
    plain = Sample(round=1, prompt_id="0.0", sample=0, attempt=1, outcome=SampleOutcome.TRAINED)
    assert "episode" not in plain.to_dict()
    assert Sample.from_dict(plain.to_dict()).episode is None


@pytest.mark.parametrize("broken", [[], "text", {"turns": [3]}, {"turns": 1}, {"turns": [{"messages": [{}]}]}])
def test_a_broken_episode_is_no_sample(broken):
    values = episode_sample().to_dict() | {"episode": broken}
    with pytest.raises(ValueError, match="not a sample"):
        Sample.from_dict(values)
