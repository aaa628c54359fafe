"""OpenTelemetry spans: an episode as spans of generative AI, made from its sample.

    invoke_agent ENVIRONMENT
      chat MODEL                a turn: from its request to the stored answer
      execute_tool TOOL         a call, as its runner measured it; of a program's own tools, from the answer that calls
                                it to the first request that has its result

Names follow the semantic conventions for generative AI. They state tokens, ids, times, and values of closed sets: no
text of a prompt, an answer, a tool or a program. Those are in the samples, and a collector keeps what it receives. So
an error is described by its cause alone, and a tool that the model was not offered has no name: the model wrote it.

Times are those at which turns were asked for and stored. Samples of an earlier release have seconds only, which are
added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context

from rljob_runtime.protocols.traces import root_span_id, trace_id

Json = Mapping[str, Any]
NANOSECONDS = 1_000_000_000
UNKNOWN = "unknown"
"""Name of a tool that was not offered."""


@dataclass(frozen=True)
class _Place:
    """The end of a turn: when its answer was stored, and the tokens up to there. Before the first: of the attempt."""

    seconds: float
    tokens: int = 0
    calls: tuple[Json, ...] = ()


class EpisodeIds(RandomIdGenerator):
    """Ids of spans: those of an attempt's own span follow from the attempt, so that its agent's spans join it."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.attempt: int | None = None
        """The attempt whose own span is about to start."""

    def generate_trace_id(self) -> int:
        """Return the id of the next trace."""
        return super().generate_trace_id() if self.attempt is None else trace_id(self._run, self.attempt)

    def generate_span_id(self) -> int:
        """Return the id of the next span."""
        return super().generate_span_id() if self.attempt is None else root_span_id(self._run, self.attempt)


class EpisodeSpans:
    """Exports episodes. `model`: the name under which agents ask for it. `ids`: those of the tracer."""

    def __init__(self, tracer: Tracer, model: str, ids: EpisodeIds) -> None:
        self._tracer = tracer
        self._model = model
        self._ids = ids

    def export(self, number: int, records: Sequence[Json]) -> int:
        """Export the episodes of a round's samples; return how many there are.

        One whose times are not known has no span: it was stored by an earlier release.
        """
        episodes = [one for record in records if (one := record.get("episode")) and _has_times(one)]
        for episode in episodes:
            self._episode(number, episode)
        return len(episodes)

    def _episode(self, number: int, episode: Json) -> None:
        environment, attempt = str(episode["environment"]), int(episode["attempt"])
        shared: dict[str, Any] = {
            "gen_ai.provider.name": "rljob",
            "gen_ai.conversation.id": str(attempt),
            "rljob.round": number,
        }
        self._ids.attempt = attempt
        agent = self._tracer.start_span(
            f"invoke_agent {environment}",
            start_time=_time(episode["started"]),
            attributes={**shared, "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": environment},
        )
        self._ids.attempt = None
        if episode.get("state") == "aborted":
            agent.set_status(Status(StatusCode.ERROR, str(episode.get("cause", ""))))
        context = set_span_in_context(agent)
        places = {0: _Place(float(episode["started"]))}
        told: set[tuple[int, int]] = set()
        for turn in episode["turns"]:
            above = turn.get("after", 0)
            before = places[above]
            asked = turn.get("opened", before.seconds + turn["outsideSeconds"])
            places[turn["node"]] = self._chat(turn, before, asked, shared, context)
            for place in _answered(before.calls, turn):
                if (above, place) not in told:
                    told.add((above, place))
                    offered = before.calls[place]["name"] in episode.get("tools", ())
                    seconds = _call_seconds(before.calls[place], before.seconds, asked)
                    self._tool(before.calls[place], offered, seconds, shared, context)
        agent.end(_time(max(place.seconds for place in places.values())))

    def _tool(self, call: Json, offered: bool, seconds: tuple[float, float], shared: Json, context: Any) -> None:
        """Export a call of a tool. `seconds`: when it ran."""
        name = call["name"] if offered else UNKNOWN
        self._tracer.start_span(
            f"execute_tool {name}",
            context,
            start_time=_time(seconds[0]),
            attributes={
                **shared,
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.call.id": call.get("id", ""),
                "gen_ai.tool.type": "function",
            },
        ).end(_time(seconds[1]))

    def _chat(self, turn: Json, before: _Place, asked: float, shared: Json, context: Any) -> _Place:
        """Export a turn; return its end."""
        given = before.tokens + turn.get("givenTokens", 0)
        sampled, stored = turn.get("sampledTokens", 0), turn.get("stored", asked + turn["modelSeconds"])
        self._tracer.start_span(
            f"chat {self._model}",
            context,
            SpanKind.CLIENT,
            start_time=_time(asked),
            attributes={
                **shared,
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": self._model,
                "gen_ai.usage.input_tokens": given,
                "gen_ai.usage.output_tokens": sampled,
                "gen_ai.response.finish_reasons": [turn.get("finish", "")],
                "rljob.node": turn["node"],
                "rljob.weight_version": turn.get("weightVersion", -1),
            },
        ).end(_time(stored))
        return _Place(stored, given + sampled, tuple(turn.get("calls", ())))


def _has_times(episode: Json) -> bool:
    turns = episode.get("turns", ())
    known = all("modelSeconds" in turn and "outsideSeconds" in turn for turn in turns)
    return bool(turns) and known and "started" in episode


def _call_seconds(call: Json, answered: float, asked: float) -> tuple[float, float]:
    """Return when a call ran: between the answer that called it and the request that has its result."""
    if "seconds" not in call or "stored" not in call:
        return answered, asked
    end = min(max(call["stored"], answered), asked)
    return max(answered, end - call["seconds"]), end


def _answered(calls: Sequence[Json], turn: Json) -> list[int]:
    """Return the places of the calls whose results a turn's request has."""
    results = {message.get("callId") for message in turn.get("messages", ()) if message["role"] == "tool"}
    return [place for place, call in enumerate(calls) if call.get("id") in results]


def _time(seconds: float) -> int:
    return int(seconds * NANOSECONDS)
