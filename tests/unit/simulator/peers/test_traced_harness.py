"""A workload with turns, played by the harnesses of the production coordinator's episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rljob_runtime.protocols.trajectory import PromptKey, Response, TrajectoryKey
from rljob_runtime.simulator.core.events import Event, Generated, Submitted, Trained
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.episode_side import Environment, EpisodeScenario
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.invariants.episodes import response_of
from rljob_runtime.simulator.peers.cluster import ClusterSpec
from rljob_runtime.simulator.peers.harness import Fault, HarnessScript
from rljob_runtime.simulator.peers.traced_harness import TracedScript
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from rljob_runtime.simulator.run import simulate
from rljob_runtime.simulator.scenario import Scenario
from rljob_runtime.workloads import Prompt, ToolCall, Turn, Workload, open_workload
from rljob_runtime.workloads import Response as Load

ROUNDS, PROMPTS, RESPONSES = 2, 3, 2


@dataclass(frozen=True)
class Searches:
    """One to four turns. Two calls run simultaneously after each but the last; those of the first two say nothing."""

    task: str = "searches"

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt:
        return Prompt(index, 20 + index, tuple(Load(tuple(self._turns(step, index, one))) for one in range(responses)))

    @staticmethod
    def _turns(step: int, index: int, sample: int) -> Iterator[Turn]:
        for turn in range((index + sample) % 4):
            seconds = 1.0 + index + turn
            answers = (30, 4 + sample) if turn > 1 else (0, 0)
            yield Turn(7 + index + turn, tuple(map(ToolCall, (seconds, 2 * seconds), answers)))
        yield Turn(11 + step + sample)


def scenario_of(script: HarnessScript) -> Scenario:
    return Scenario(
        seed=1,
        machines=2,
        rounds=ROUNDS,
        prompts=PROMPTS,
        responses=RESPONSES,
        prompts_an_epoch=PROMPTS,
        checkpoint_every=ROUNDS,
        site=ClusterSpec(),
        costs=TrainerCosts(step=1.0),
        workload="",
        reward_seconds=0.0,
        episodes=EpisodeScenario((Environment(script),)),
        max_response_tokens=30_000,
    )


@dataclass
class Seen:
    """What a run has shown: trained responses, and the waits between a turn's end and the next one's request."""

    responses: list[Response]
    waits: dict[TrajectoryKey, list[float]]


def play(workload: Workload) -> Seen:
    ends: dict[TrajectoryKey, float] = {}
    seen = Seen([], defaultdict(list))

    def watch(event: Event) -> None:
        match event:
            case Generated(key=turn) if (key := response_of(turn)) is not None:
                ends[key] = loop_time()
            case Submitted(key=turn) if (key := response_of(turn)) in ends:
                seen.waits[key].append(loop_time() - ends[key])
            case Trained(groups=groups):
                seen.responses += [scored.response for group in groups for scored in group.responses]

    script = TracedScript(workload=workload, responses=RESPONSES)
    outcome = simulate(scenario_of(script), FaultPlan(), [watch], workload)
    assert outcome.passed, outcome.violation
    assert len(seen.responses) == ROUNDS * PROMPTS * RESPONSES
    return seen


@pytest.mark.parametrize("workload", [Searches(), open_workload("search-r1-7b", 0)], ids=lambda one: one.task)
def test_a_traced_episode_has_the_turns_and_waits_of_its_workload(workload: Workload) -> None:
    seen = play(workload)
    for response in seen.responses:
        key = response.key
        turns = workload.prompt(key.prompt.epoch, key.prompt.index, RESPONSES).responses[key.sample].turns
        (spans,) = response.sequences or ((),)
        sampled = [span.sampled for span in spans] or [len(response.token_ids)]
        assert sampled == [max(1, turn.tokens) for turn in turns]
        assert [len(span.given) for span in spans[1:]] == [turn.tool_tokens for turn in turns[: len(spans) - 1]]
        # Beside the tools: until the turn is streamed and stored, and messages under way.
        tools = [turn.tool_seconds for turn in turns[:-1]]
        assert all(0 <= wait - tool < 0.5 for wait, tool in zip(seen.waits[key], tools, strict=True)), key
    assert max(len(waits) for waits in seen.waits.values()) > 0


def test_faults_of_a_traced_harness_are_those_of_its_script() -> None:
    key = TrajectoryKey(PromptKey(1, 2), 0)
    plain = TracedScript(workload=Searches(), responses=RESPONSES)
    slow = TracedScript(workload=Searches(), responses=RESPONSES, faults=((Fault.SLOW, 1000),))
    assert (plain.fault_of(key, 1), slow.fault_of(key, 1)) == (None, Fault.SLOW)
    assert slow.tool_seconds_of(key, 0, Fault.SLOW) == 60 * plain.tool_seconds_of(key, 0, None) == 60 * 2 * 3.0
