"""A round under way as a decision about a loan sees it (`scheduling.lending.gain.Outlook`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.protocols import PromptSource
from rljob_runtime.protocols.trajectory import PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.lending.gain import OpenGroup, RoundSnapshot
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, LoanableMachine, Unfinished
from rljob_runtime.scheduling.partial_responses import Partials
from rljob_runtime.scheduling.round import Launch, Round, SampleState


def snapshot_round(
    round_: Round,
    responses: Mapping[TrajectoryKey, Response],
    running: Sequence[Launch],
    partials: Partials,
    prompts: PromptSource,
    herd: ReplicaPool,
    lengths: ExpectedLengths,
    computed_tokens: int,
) -> RoundSnapshot:
    """`responses`: those that ended; `running`: what replicas generate now. Of the loss tokens of whole groups
    `computed_tokens` have their gradients."""
    whole, size = round_.complete_prompts, round_.plan.shape.group_size
    still = [prompt for prompt in round_.plan.prompts if prompt not in whole and prompt not in round_.filtered]
    numbers = {prompt: number for number, prompt in enumerate(still)}
    places = {prompt: round_.places(prompt) for prompt in (*still, *whole)}

    def tokens(prompt: PromptKey) -> int:
        return sum(len(responses[key].token_ids) for key in places[prompt])

    def unfinished(key: TrajectoryKey) -> Unfinished:
        prompt_tokens = len(prompts.prompt(key.prompt).token_ids)
        return Unfinished(prompt_tokens, partials.length_of(key), numbers[key.prompt])

    by_machine: dict[str, list[Unfinished]] = defaultdict(list)
    for launch in running:
        by_machine[machine_of(launch.lease.replica)].append(unfinished(launch.key))
    room: dict[str, list[int]] = defaultdict(list)
    for name in herd.names():
        room[machine_of(name)].append(herd.kv_tokens(name))
    return RoundSnapshot(
        machines=[
            LoanableMachine(name, sum(its), tuple(by_machine[name]), len(its)) for name, its in sorted(room.items())
        ],
        waiting=[unfinished(key) for key in round_.in_state(SampleState.WAITING)],
        lengths=lengths,
        groups=[OpenGroup(size - len(places[prompt]), tokens(prompt)) for prompt in still],
        wanted=round_.plan.shape.groups - len(whole),
        backlog=max(0, sum(map(tokens, whole)) - computed_tokens),
        speed=herd.engine_speed(),
    )
