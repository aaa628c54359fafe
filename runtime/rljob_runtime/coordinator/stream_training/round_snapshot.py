"""Round snapshot: the state of a running round, as `scheduling.lending.gain` takes it for a loan decision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.generation.observed_engines import ObservedEngines
from rljob_runtime.protocols import PromptSource
from rljob_runtime.protocols.trajectory import PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.lending.gain import OpenGroup, RoundSnapshot
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, LoanableMachine, Unfinished
from rljob_runtime.scheduling.partial_responses import Partials
from rljob_runtime.scheduling.round import Round
from rljob_runtime.scheduling.round_plan import Launch
from rljob_runtime.scheduling.round_samples import SampleState


def snapshot_round(
    round_: Round,
    responses: Mapping[TrajectoryKey, Response],
    running: Sequence[Launch],
    partials: Partials,
    prompts: PromptSource,
    engines: ObservedEngines,
    lengths: ExpectedLengths,
    computed_tokens: int,
    expected: Mapping[TrajectoryKey, str] = MappingProxyType({}),
) -> RoundSnapshot:
    """Return the state of a round.

    `responses`: the finished ones. `running`: launches that generate now. `computed_tokens`: loss tokens of complete
    groups that have their gradients. `expected`: the replicas to come of waiting responses whose machines switch now.
    """
    complete, size = round_.complete_prompts, round_.plan.shape.group_size
    open_prompts = [
        prompt for prompt in round_.plan.prompts if prompt not in complete and prompt not in round_.filtered
    ]
    numbers = {prompt: number for number, prompt in enumerate(open_prompts)}
    places = {prompt: round_.places(prompt) for prompt in (*open_prompts, *complete)}

    def tokens(prompt: PromptKey) -> int:
        return sum(len(responses[key].token_ids) for key in places[prompt])

    def unfinished(key: TrajectoryKey) -> Unfinished:
        prompt_tokens = len(prompts.prompt(key.prompt).token_ids)
        return Unfinished(prompt_tokens, partials.length_of(key), numbers[key.prompt])

    by_machine: dict[str, list[Unfinished]] = defaultdict(list)
    by_replica: dict[str, list[Unfinished]] = defaultdict(list)
    for launch in running:
        by_replica[launch.lease.replica].append(one := unfinished(launch.key))
        by_machine[machine_of(launch.lease.replica)].append(one)
    for key, replica in expected.items():
        by_replica[replica].append(unfinished(key))
    capacity: dict[str, list[int]] = defaultdict(list)
    for name, kv_tokens in engines.kv_tokens.items():
        capacity[machine_of(name)].append(kv_tokens)
    return RoundSnapshot(
        machines=[
            LoanableMachine(name, sum(each), tuple(by_machine[name]), len(each))
            for name, each in sorted(capacity.items())
        ],
        waiting=[unfinished(key) for key in round_.in_state(SampleState.WAITING) if key not in expected],
        lengths=lengths,
        groups=[OpenGroup(size - len(places[prompt]), tokens(prompt)) for prompt in open_prompts],
        wanted=round_.plan.shape.groups - len(complete),
        backlog=max(0, sum(map(tokens, complete)) - computed_tokens),
        speed=engines.speed,
        by_replica=by_replica,
        speeds=engines.other_speeds,
    )
