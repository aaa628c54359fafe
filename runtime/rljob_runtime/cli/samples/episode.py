"""Episode view: the turns of a sample, who spoke in each, and which text was sampled."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from rljob_runtime.samples.episode import SampleCall, SampleEpisode, SampleMessage, SampleTurn
from rljob_runtime.samples.visible import visible

GIVEN = "bold dim"


def episode_facts(episode: SampleEpisode) -> list[str]:
    """Return what is said of an episode in few words."""
    facts = [episode.environment, f"{len(episode.turns)} turns", episode.state or "not ended"]
    if episode.end is not None:
        facts.append(episode.end)
    if episode.forks:
        facts.append(f"{episode.forks} forks")
    return facts


def episode_parts(episode: SampleEpisode, style: str) -> Iterator[Text]:
    """Yield the texts of an episode. `style`: of sampled text's headings; given text is dim."""
    named: dict[str, str] = {}
    before = 0
    for place, turn in enumerate(episode.turns, 1):
        if turn.after != before:
            yield Text(_branch(episode, turn), style="bold yellow")
        before = turn.node
        yield from _given(turn, named)
        yield Text(visible(f"assistant  turn {place}: {turn_facts(turn)}"), style=f"bold {style}")
        yield Text(visible(turn.sampled))
        for call in turn.calls:
            named[call.id] = call.name
            yield Text(visible(f"calls {call_text(call)}"), style=style)


def turn_facts(turn: SampleTurn) -> str:
    """Return the tokens, the end and the seconds of a turn, in a line."""
    facts = [f"{turn.sampled_tokens} tokens sampled after {turn.given_tokens} given", f"end: {turn.finish}"]
    facts.append(f"weights {turn.weight_version}")
    if turn.model_seconds is not None:
        facts.append(f"{turn.outside_seconds or 0:.3g} s outside, {turn.model_seconds:.3g} s in the model")
    return ", ".join(facts)


def call_text(call: SampleCall) -> str:
    """Return a call as text."""
    took = "" if call.seconds is None else f", {call.seconds:.3g} s"
    return f"{call.name}({call.arguments}){took}"


def _branch(episode: SampleEpisode, turn: SampleTurn) -> str:
    places = {one.node: place for place, one in enumerate(episode.turns, 1)}
    return f"branch: goes on from turn {places[turn.after]}" if turn.after in places else "branch: from the beginning"


def _given(turn: SampleTurn, named: dict[str, str]) -> Iterator[Text]:
    """Yield what a turn was given. `named`: the names of calls by their ids."""
    for message in turn.messages:
        yield Text(visible(_speaker(message, named)), style=GIVEN)
        yield Text(visible(message.content))
        for call in message.calls:
            yield Text(visible(f"calls {call_text(call)}"), style="dim")
    if turn.given:
        yield Text("given as tokens", style=GIVEN)
        yield Text(visible(turn.given))


def _speaker(message: SampleMessage, named: dict[str, str]) -> str:
    if message.role == "tool" and message.call_id in named:
        return f"tool {named[message.call_id]}"
    # The client wrote what the model is said to have answered.
    return "assistant, not sampled" if message.role == "assistant" else message.role
