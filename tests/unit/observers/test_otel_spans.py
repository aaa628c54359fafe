"""An episode is exported as spans of generative AI: the agent's, and below it turns and tools, with their times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from rljob_runtime.observers.otel_metrics import OtelMetrics
from rljob_runtime.observers.protocol import ObservedJob
from rljob_runtime.observers.sent_traces import traced_run
from rljob_runtime.protocols.traces import traceparent
from rljob_runtime.samples.episode import SampleCall, SampleMessage
from tests.support.sample_episodes import ANSWERED, ASKED, CALL, EPISODE, episode_sample

JOB = ObservedJob("calculator", "default", "uid-1", {}, Path("/unused"))
PLAYED = replace(EPISODE, turns=(ASKED, ANSWERED), started=1000.0)


def exported(*episodes: Any) -> list[Any]:
    spans = InMemorySpanExporter()
    observer = OtelMetrics(JOB, {}, InMemoryMetricReader(), spans=spans)
    observer.samples(3, [episode_sample(one).to_dict() for one in episodes])
    observer.close()
    return sorted(spans.get_finished_spans(), key=lambda one: (one.start_time, -one.end_time))


def test_turns_and_tools_of_an_episode_are_spans_below_its_agent() -> None:
    agent, first, tool, second = exported(PLAYED)
    assert [one.name for one in (agent, first, tool, second)] == [
        "invoke_agent calc", "chat calculator", "execute_tool calculate", "chat calculator"
    ]  # fmt: skip
    assert {one.parent.span_id for one in (first, tool, second)} == {agent.context.span_id}
    assert {one.context.trace_id for one in (agent, first, tool, second)} == {agent.context.trace_id}
    seconds = [(one.start_time / 1e9, one.end_time / 1e9) for one in (agent, first, tool, second)]
    assert seconds == [(1000.0, 1001.875), (1000.0, 1000.25), (1000.25, 1001.75), (1001.75, 1001.875)]
    assert agent.attributes["gen_ai.agent.name"] == "calc"
    assert (tool.attributes["gen_ai.tool.name"], tool.attributes["gen_ai.tool.call.id"]) == ("calculate", "call_2_0")
    used = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "rljob.weight_version")
    assert [tuple(one.attributes[name] for name in used) for one in (first, second)] == [(24, 11, 3), (42, 5, 3)]
    assert {one.attributes["gen_ai.conversation.id"] for one in (agent, first, tool, second)} == {"7"}
    assert all("47" not in str(value) for one in (agent, first, tool, second) for value in one.attributes.values())


def test_spans_are_at_the_moments_of_turns_and_not_at_sums_of_seconds() -> None:
    """Between the turns the attempt had no runner for 30 s, which are no seconds of it."""
    asked = replace(ASKED, opened=1000.0, stored=1000.25)
    answered = replace(ANSWERED, opened=1031.75, stored=1031.875)
    agent, first, tool, second = exported(replace(PLAYED, turns=(asked, answered)))
    seconds = [(one.start_time / 1e9, one.end_time / 1e9) for one in (agent, first, tool, second)]
    assert seconds == [(1000.0, 1031.875), (1000.0, 1000.25), (1000.25, 1031.75), (1031.75, 1031.875)]


@pytest.mark.parametrize(
    ("seconds", "stored", "span"),
    [
        (0.5, 1001.0, (1000.5, 1001.0)),
        (0.25, 999.0, (1000.25, 1000.25)),
        (9.0, 1009.0, (1000.25, 1001.75)),
        (None, None, (1000.25, 1001.75)),
    ],
    ids=["measured", "a clock behind", "longer than there was time", "not measured"],
)
def test_a_span_of_a_tool_is_the_time_of_the_call(
    seconds: float | None, stored: float | None, span: tuple[float, float]
) -> None:
    asked = replace(ASKED, calls=(replace(CALL, seconds=seconds, stored=stored),))
    (tool,) = [one for one in exported(replace(PLAYED, turns=(asked, ANSWERED))) if "tool" in one.name]
    assert (tool.start_time / 1e9, tool.end_time / 1e9) == span


@pytest.mark.parametrize(("cause", "shown"), [("tool server", "tool server"), (None, "")])
def test_an_aborted_episode_is_an_error_with_its_cause_alone(cause: str | None, shown: str) -> None:
    agent, *_ = exported(replace(PLAYED, state="aborted", cause=cause, end="tool server: key sk-live"))
    assert (agent.status.status_code, agent.status.description or "") == (StatusCode.ERROR, shown)


SECRET = "John Doe"


def test_no_text_of_an_episode_is_in_a_span() -> None:
    """Each text of the sample that a prompt, a model, a tool or a program writes has the secret."""
    call = SampleCall(SECRET, f'{{"of": "{SECRET}"}}', "call_2_0")
    asked = replace(ASKED, messages=(SampleMessage("user", SECRET),), given=SECRET, sampled=SECRET, calls=(call,))
    answer = (SampleMessage("tool", SECRET, call_id="call_2_0"),)
    answered = replace(ANSWERED, messages=answer, given=SECRET, sampled=SECRET)
    spans = exported(replace(PLAYED, turns=(asked, answered), state="aborted", end=f"tool server: {SECRET}"))
    assert [one.name for one in spans] == [
        "invoke_agent calc", "chat calculator", "execute_tool unknown", "chat calculator"
    ]  # fmt: skip
    assert not [one for one in spans if SECRET in one.to_json()]


@pytest.mark.parametrize(
    "episode",
    [EPISODE, replace(PLAYED, started=None), replace(PLAYED, turns=())],
    ids=["a turn without times", "an unknown start", "no turn"],
)
def test_an_episode_whose_times_are_not_known_has_no_span(episode: Any) -> None:
    assert exported(episode) == []
    assert len(exported(PLAYED, episode)) == 4


def test_a_call_without_a_result_is_no_tool_that_ran() -> None:
    silent = replace(ANSWERED, messages=())
    assert [one.name for one in exported(replace(PLAYED, turns=(ASKED, silent)))] == [
        "invoke_agent calc", "chat calculator", "chat calculator"
    ]  # fmt: skip


def test_a_call_whose_result_two_branches_have_is_one_span() -> None:
    """Each branch has another part of the results; a call ends with the first request that has its own."""
    asked = replace(ASKED, calls=(CALL, replace(CALL, id="call_2_1")))
    second = SampleMessage("tool", "7", call_id="call_2_1")
    later = replace(ANSWERED, node=6, outside_seconds=3.0, messages=(*ANSWERED.messages, second))
    last = replace(later, node=8, outside_seconds=4.0)
    spans = exported(replace(PLAYED, turns=(asked, ANSWERED, later, last)))
    tools = [one for one in spans if one.name.startswith("execute_tool")]
    assert [(one.attributes["gen_ai.tool.call.id"], one.end_time / 1e9) for one in tools] == [
        ("call_2_1", 1003.25), ("call_2_0", 1001.75)
    ]  # fmt: skip
    assert len([one for one in spans if one.name.startswith("chat")]) == 4


def test_equal_calls_of_two_turns_are_two_spans() -> None:
    again = replace(ANSWERED, calls=(CALL,))
    last = replace(ANSWERED, node=6, after=4)
    names = [one.name for one in exported(replace(PLAYED, turns=(ASKED, again, last)))]
    assert names.count("execute_tool calculate") == 2


def test_spans_are_sent_only_where_an_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    without = OtelMetrics(JOB, {}, InMemoryMetricReader())
    assert without._episodes is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert OtelMetrics(JOB, {}, InMemoryMetricReader())._episodes is not None


def test_spans_of_an_agent_join_the_trace_of_its_episode() -> None:
    agent, *below = exported(PLAYED)
    mine, *_ = exported(replace(PLAYED, attempt=8))
    assert traceparent("uid-1", 7) == f"00-{agent.context.trace_id:032x}-{agent.context.span_id:016x}-01"
    assert agent.parent is None
    assert len({one.context.span_id for one in (agent, *below)}) == 4, "only the agent's own span has a known id"
    assert mine.context.trace_id != agent.context.trace_id


@pytest.mark.parametrize(
    ("observers", "variables", "run"),
    [
        ({"opentelemetry": {"tracesEndpoint": "http://c/v1/traces"}}, {}, "uid-1"),
        ({"opentelemetry": {}}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, "uid-1"),
        ({"opentelemetry": {}}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, "uid-1"),
        ({"opentelemetry": {"endpoint": "http://c/v1/metrics"}}, {}, None),
        ({"wandb": {"tracesEndpoint": "http://c"}}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, None),
        ({}, {}, None),
    ],
)
def test_agents_get_a_trace_where_spans_are_exported(observers: Any, variables: Any, run: str | None) -> None:
    assert traced_run("uid-1", observers, variables) == run
