"""Trained digests: what the trainer got of each response of an episode, for the audit.

They are made from the groups as they were handed to the trainer. If a coordinator is lost between training and closing,
the next one loads the groups again, and the digests are of those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rljob_runtime.audit.stored_turns import Context, trained_digest
from rljob_runtime.protocols.trajectory import Group, Response, Span, TrajectoryKey


def trained_digests(groups: Sequence[Group]) -> Mapping[TrajectoryKey, bytes]:
    """Return a digest of each response: sampled tokens, what precedes them, log-probabilities and reward.

    A response that is in the groups twice has the tokens of both. The time grows with the tokens of all sequences, so
    the event loop must not call it.
    """
    sampled: dict[TrajectoryKey, list[bytes]] = defaultdict(list)
    rewards: dict[TrajectoryKey, float] = {}
    for group in groups:
        prompt = Context().extended(group.prompt_token_ids)
        for scored in group.responses:
            sampled[scored.response.key] += _sampled(prompt, scored.response)
            rewards[scored.response.key] = scored.reward
    return {key: trained_digest(found, rewards[key]) for key, found in sampled.items()}


def _sampled(prompt: Context, response: Response) -> Iterator[bytes]:
    start = 0
    for sequence in response.sequences or ((Span((), len(response.token_ids)),),):
        context = prompt
        for span in sequence:
            context = context.extended(span.given)
            tokens = response.token_ids[start : start + span.sampled]
            yield context.sampled(tokens, response.logprobs[start : start + span.sampled])
            context = context.extended(tokens)
            start += span.sampled
